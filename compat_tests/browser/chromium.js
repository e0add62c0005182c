// Headless Chromium, which comes as a package: no root, no display.
"use strict";

const chromium = require("@sparticuz/chromium");
const puppeteer = require("puppeteer-core");

// Calls a function with a browser and each of the names; prints the faults that it returns.
async function checkEach(names, check) {
  const browser = await puppeteer.launch({
    executablePath: await chromium.executablePath(),
    headless: "shell",
    // In one process it ends when a page with a worker is drawn.
    args: chromium.args.filter((argument) => argument !== "--single-process"),
  });
  let failed = false;
  try {
    for (const name of names) {
      const faults = await check(browser, name);
      failed = failed || faults.length > 0;
      console.log(`${name}: ${faults.length ? faults.join("; ") : "as it should be"}`);
    }
    console.log(await browser.version());
  } finally {
    await browser.close();
  }
  process.exitCode = failed ? 1 : 0;
}

// Adds to the faults what a page writes to the console, but for the kinds that it may write, and the
// errors that it raises.
function listen(page, faults, may = []) {
  page.on("console", (message) => {
    if (!may.includes(message.type())) faults.push(`writes ${message.type()}: ${message.text()}`);
  });
  page.on("pageerror", (error) => faults.push(`raises ${error}`));
}

module.exports = { checkEach, listen };

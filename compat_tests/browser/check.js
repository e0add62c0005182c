// Loads pages from files in headless Chromium: `node check.js PAGE...`.
//
// A page may ask for nothing but itself, write nothing to the console, raise no error, and must fit
// into a window and on paper. Beside each page it leaves a picture of what a reader sees.
"use strict";

const path = require("node:path");
const { pathToFileURL } = require("node:url");
const chromium = require("@sparticuz/chromium");
const puppeteer = require("puppeteer-core");

const WIDTHS = [1100, 700];
const TALLEST = 16000; // Chromium draws no more at once.

async function check(browser, file) {
  const page = await browser.newPage();
  const own = pathToFileURL(path.resolve(file)).href;
  const faults = [];
  page.on("request", (request) => {
    if (request.url() !== own) faults.push(`asks for ${request.url()}`);
  });
  page.on("console", (message) => faults.push(`writes ${message.type()}: ${message.text()}`));
  page.on("pageerror", (error) => faults.push(`raises ${error}`));
  await page.setOfflineMode(true);
  for (const width of WIDTHS) {
    await page.setViewport({ width, height: 900 });
    await page.goto(own, { waitUntil: "networkidle0" });
    const seen = await page.evaluate(() => {
      const wide = document.documentElement;
      const drawn = [...document.querySelectorAll("svg[role=img]")].map((svg) => svg.getBBox());
      return {
        overflows: wide.scrollWidth > window.innerWidth,
        height: wide.scrollHeight,
        text: document.body.innerText.length,
        charts: drawn.filter((box) => box.width > 100 && box.height > 100).length,
      };
    });
    if (seen.overflows) faults.push(`is wider than ${width} pixels`);
    if (seen.text < 1000) faults.push("says next to nothing");
    if (seen.charts !== 2) faults.push(`draws ${seen.charts} charts instead of 2`);
    if (width === WIDTHS[0]) {
      const clip = { x: 0, y: 0, width, height: Math.min(seen.height, TALLEST) };
      const picture = file.replace(/\.html$/, ".png");
      await page.screenshot({ path: picture, clip, captureBeyondViewport: true });
    }
  }
  const printed = await page.pdf({ format: "A4" });
  if (printed.length < 10000) faults.push("prints nothing");
  await page.close();
  return faults;
}

async function main() {
  const browser = await puppeteer.launch({
    executablePath: await chromium.executablePath(),
    headless: "shell",
    args: chromium.args,
  });
  let failed = false;
  try {
    for (const file of process.argv.slice(2)) {
      const faults = await check(browser, file);
      failed = failed || faults.length > 0;
      console.log(`${file}: ${faults.length ? faults.join("; ") : "as it should be"}`);
    }
    console.log(await browser.version());
  } finally {
    await browser.close();
  }
  process.exitCode = failed ? 1 : 0;
}

main();

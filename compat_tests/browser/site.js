// Reads the built documentation in headless Chromium: `node site.js DIRECTORY`.
//
// At the size of a desk, a tablet and a telephone each page has to fit into the window, may ask for
// nothing but files of the site, all of which are there, and may write and raise no error. The
// search has to find a setting, and what it finds has to name it. Pictures of the first page and of
// the search at each size are left in the directory `pictures` beside the site.
"use strict";

const fs = require("node:fs");
const http = require("node:http");
const path = require("node:path");
const { checkEach, listen } = require("./chromium");

const SIZES = [
  { width: 1440, height: 900 },
  { width: 820, height: 1180 },
  { width: 390, height: 844 },
];
const SOUGHT = "clipping_limit";
const TYPES = { ".html": "text/html", ".css": "text/css", ".js": "text/javascript" };
const MILLISECONDS = 30_000;

const site = path.resolve(process.argv[2]);
const pictures = path.join(path.dirname(site), "pictures");

function serve() {
  const server = http.createServer((request, response) => {
    const file = path.join(site, decodeURIComponent(new URL(request.url, "http://x").pathname));
    fs.readFile(file, (error, content) => {
      const type = TYPES[path.extname(file)] || "application/octet-stream";
      response.writeHead(error ? 404 : 200, { "content-type": type });
      response.end(error ? "" : content);
    });
  });
  return new Promise((resolve) => server.listen(0, "127.0.0.1", () => resolve(server)));
}

async function open(browser, origin, faults) {
  const page = await browser.newPage();
  listen(page, faults, ["log"]); // The search tells how far it is.
  page.on("request", (request) => {
    const url = request.url();
    if (!url.startsWith(origin) && !url.startsWith("data:")) faults.push(`asks for ${url}`);
  });
  page.on("response", (response) => {
    if (response.status() >= 400) faults.push(`lacks ${response.url().slice(origin.length)}`);
  });
  return page;
}

async function wide(page, size) {
  const overflow = await page.evaluate(() => {
    const width = document.documentElement.clientWidth;
    if (document.documentElement.scrollWidth <= width) return null;
    const inside = (element) => {
      for (let one = element.parentElement; one; one = one.parentElement) {
        if (getComputedStyle(one).overflowX !== "visible") return true;
      }
      return false;
    };
    const beyond = [...document.querySelectorAll("body *")].filter(
      (element) => element.getBoundingClientRect().right > width + 1 && !inside(element),
    );
    const named = (element) => `${element.tagName} ${element.textContent.trim().slice(0, 30)}`;
    return beyond.length ? named(beyond[0]) : "no element of it";
  });
  return overflow === null ? [] : [`is wider than ${size.width} pixels: ${overflow}`];
}

async function read(browser, origin, file) {
  const faults = [];
  const page = await open(browser, origin, faults);
  for (const size of SIZES) {
    await page.setViewport(size);
    await page.goto(`${origin}/${file}`, { waitUntil: "load" });
    faults.push(...(await wide(page, size)));
    if (file === "README.html" || file === "index.html") {
      await page.screenshot({ path: path.join(pictures, `first_${size.width}.png`) });
    }
  }
  await page.close();
  return faults;
}

async function search(browser, origin) {
  const faults = [];
  const page = await open(browser, origin, faults);
  for (const size of SIZES) {
    await page.setViewport(size);
    await page.goto(`${origin}/index.html`, { waitUntil: "load" });
    const results = "#mkdocs-search-results article a";
    try {
      // Set once the index is there; what is typed before that is not sought.
      await page.waitForFunction("typeof min_search_length === 'number'", { timeout: MILLISECONDS });
      await page.keyboard.press("s");
      const field = await page.waitForSelector("#mkdocs-search-query", { visible: true });
      await field.type(SOUGHT);
      await page.waitForSelector(results, { visible: true, timeout: MILLISECONDS });
    } catch (error) {
      faults.push(`does not find ${SOUGHT} at ${size.width} pixels: ${error.message}`);
      continue;
    }
    faults.push(...(await wide(page, size)));
    await page.screenshot({ path: path.join(pictures, `search_${size.width}.png`) });
    const found = await page.$eval(results, (link) => link.href);
    await page.goto(found, { waitUntil: "load" });
    const text = await page.evaluate(() => document.body.innerText);
    if (!text.includes(SOUGHT)) faults.push(`finds ${found}, which does not name ${SOUGHT}`);
  }
  await page.close();
  return faults;
}

function pages(folder) {
  return fs.readdirSync(folder, { withFileTypes: true }).flatMap((entry) => {
    const file = path.join(folder, entry.name);
    if (entry.isDirectory()) return pages(file);
    return entry.name.endsWith(".html") ? [path.relative(site, file)] : [];
  });
}

async function main() {
  fs.mkdirSync(pictures, { recursive: true });
  const server = await serve();
  const origin = `http://127.0.0.1:${server.address().port}`;
  const special = ["404.html", "search.html"];
  const files = pages(site).filter((file) => !special.includes(file));
  if (files.length < 20) throw new Error(`${site} has only ${files.length} pages: make docs`);
  const names = [...files.sort(), "the search"];
  await checkEach(names, (browser, name) =>
    name === "the search" ? search(browser, origin) : read(browser, origin, name),
  );
  server.close();
}

main();

// Loads pages from files in headless Chromium: `node check.js PAGE...`.
//
// A page may ask for nothing but itself, write nothing to the console, raise no error, and must fit
// into a window and on two sheets of paper. In the dark its paper has to be dark, and all text
// light enough. Beside each page it leaves pictures of what a reader sees, and the printed page.
"use strict";

const path = require("node:path");
const { pathToFileURL } = require("node:url");
const { checkEach, listen } = require("./chromium");

const WIDTHS = [1100, 700];
const TALLEST = 16000; // Chromium draws no more at once.
const MOST_SHEETS = 2;
const LEAST_CONTRAST = 4.5; // Of text, as the guidelines of the W3C for contents of the web have it.

async function check(browser, file) {
  const page = await browser.newPage();
  const own = pathToFileURL(path.resolve(file)).href;
  const faults = [];
  page.on("request", (request) => {
    if (request.url() !== own) faults.push(`asks for ${request.url()}`);
  });
  listen(page, faults);
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
  faults.push(...(await dark(page, file)));
  await page.emulateMediaFeatures([]);
  const printed = await page.pdf({ path: file.replace(/\.html$/, ".pdf"), preferCSSPageSize: true });
  const sheets = Buffer.from(printed).toString("latin1").match(/\/Type\s*\/Page\b/g) || [];
  if (printed.length < 10000) faults.push("prints nothing");
  if (sheets.length > MOST_SHEETS) faults.push(`prints ${sheets.length} sheets`);
  await page.close();
  return faults;
}

async function dark(page, file) {
  await page.setViewport({ width: WIDTHS[0], height: 900 });
  await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: "dark" }]);
  const pale = await page.evaluate((least) => {
    const channels = (colour) => colour.match(/[\d.]+/g).slice(0, 3).map(Number);
    const light = (colour) => {
      const [r, g, b] = channels(colour).map((c) => {
        const share = c / 255;
        return share <= 0.03928 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
      });
      return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const paper = (element) => {
      for (let one = element; one; one = one.parentElement) {
        const colour = getComputedStyle(one).backgroundColor;
        if (!/, 0\)$|transparent/.test(colour)) return light(colour);
      }
      return 1;
    };
    if (paper(document.body) > 0.05) return ["the paper"];
    const found = new Set();
    for (const element of document.querySelectorAll("body *")) {
      const own = [...element.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
      const drawn = element.namespaceURI.endsWith("svg");
      if (!own && !drawn) continue;
      const style = getComputedStyle(element);
      for (const colour of drawn ? [style.fill, style.stroke] : [style.color]) {
        if (!/^rgb/.test(colour) || (drawn && element.tagName !== "text")) continue;
        const [low, high] = [light(colour), paper(element)].sort((a, b) => a - b);
        if ((high + 0.05) / (low + 0.05) < least) found.add(element.textContent.slice(0, 40));
      }
    }
    return [...found];
  }, LEAST_CONTRAST);
  const clip = { x: 0, y: 0, width: WIDTHS[0], height: 2400 };
  const picture = file.replace(/\.html$/, ".dark.png");
  await page.screenshot({ path: picture, clip, captureBeyondViewport: true });
  return pale.map((text) => `cannot be read in the dark: ${text}`);
}

checkEach(process.argv.slice(2), check);

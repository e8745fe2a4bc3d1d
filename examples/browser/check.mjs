// node check.mjs EXPORT SOURCE EXPECTED [SCREENSHOT]: translate the lines of SOURCE in headless Chromium, and compare
// them with the lines of EXPECTED. The page may request only its own files; there is no server.
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { chromium } from "playwright-core";

const [folder, source, expected, screenshot] = process.argv.slice(2);
const lines = (path) => readFileSync(path, "utf-8").trimEnd().split("\n");
const flags = "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-component-update";
const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: [...flags.split(" "), "--disable-sync"],
});
const page = await browser.newPage({ viewport: { width: 800, height: 500 } });
const here = fileURLToPath(new URL(".", import.meta.url));
await page.route("**", (route) => {
  const url = new URL(route.request().url());
  if (url.hostname !== "translator.localhost") return route.abort();
  const name = decodeURIComponent(url.pathname);
  const path = name.startsWith("/model/") ? folder + name.slice("/model".length) : here + (name === "/" ? "index.html" : name);
  return route.fulfill({ path });
});
page.on("pageerror", (error) => console.error(String(error)));
page.on("requestfailed", (request) => console.error(`failed: ${request.url()}`));
await page.goto("http://translator.localhost/");
await page.waitForFunction(() => !/^loading/.test(document.querySelector("#status").textContent));
const translate = async (texts) => {
  await page.fill("#source", texts.join("\n"));
  await page.click("#translate");
  await page.waitForSelector("#translate:enabled");
  return (await page.textContent("#target")).split("\n");
};
const wanted = lines(expected);
const found = await translate(lines(source));
const different = wanted.filter((line, row) => line !== found[row]).length;
console.log(`${wanted.length - different} of ${wanted.length} translations are equal; ${await page.textContent("#status")}`);
if (screenshot) {
  await translate(lines(source).slice(0, 4));
  await page.screenshot({ path: screenshot });
}
await browser.close();
process.exit(different || found.length !== wanted.length ? 1 : 0);

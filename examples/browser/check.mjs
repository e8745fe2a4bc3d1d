// node check.mjs EXPORT SOURCE EXPECTED [SCREENSHOT]: translate the lines of SOURCE in headless Chromium, and compare
// them with the lines of EXPECTED.
import { readFileSync } from "node:fs";
import { open } from "./page.mjs";

const [folder, source, expected, screenshot] = process.argv.slice(2);
const lines = (path) => readFileSync(path, "utf-8").trimEnd().split("\n");
const { browser, page } = await open("index.html", folder);
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

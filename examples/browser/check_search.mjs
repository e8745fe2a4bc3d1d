// node check_search.mjs FOLDER EXPECTED [SCREENSHOT]: compare what search.html shows with the file of check_search.py.
import { readFileSync } from "node:fs";
import { open } from "./page.mjs";

const [folder, expected, screenshot] = process.argv.slice(2);
const { browser, page } = await open("search.html", folder);
await page.waitForSelector("#query:enabled");
if (screenshot) await page.screenshot({ path: screenshot, fullPage: true });
let largest = 0;
for (const [query, scores] of JSON.parse(readFileSync(expected, "utf-8"))) {
  await page.fill("#query", query);
  await page.evaluate(() => window.answered);
  const items = await page.$$eval("li", (list) => list.map((item) => [item.lastChild.data.trim(), Number(item.firstChild.value)]));
  const ordered = items.every(([, score], row) => row === 0 || score <= items[row - 1][1]);
  const differences = items.map(([text, score]) => Math.abs(score - scores[text]));
  largest = Math.max(largest, ordered && items.length === 20 ? Math.max(...differences) : Infinity);
}
console.log(`largest difference of a similarity: ${largest.toExponential(1)}; ${await page.textContent("#status")}`);
await browser.close();
process.exit(largest < 1e-4 ? 0 : 1);

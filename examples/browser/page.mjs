// Open a page of this folder in headless Chromium. It may request only its own files; there is no server.
import { fileURLToPath } from "node:url";
import { chromium } from "playwright-core";

/** Return the browser and the page, after the model of `folder` is loaded. */
export async function open(name, folder) {
  const flags = "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-component-update";
  const browser = await chromium.launch({
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
    args: [...flags.split(" "), "--disable-sync"],
  });
  const page = await browser.newPage({ viewport: { width: 800, height: 500 } });
  const here = fileURLToPath(new URL(".", import.meta.url));
  await page.route("**", (route) => {
    const url = new URL(route.request().url());
    if (url.hostname !== "page.localhost") return route.abort();
    const path = decodeURIComponent(url.pathname);
    return route.fulfill({ path: path.startsWith("/model/") ? folder + path.slice("/model".length) : here + path });
  });
  page.on("pageerror", (error) => console.error(String(error)));
  page.on("requestfailed", (request) => console.error(`failed: ${request.url()}`));
  await page.goto(`http://page.localhost/${name}`);
  await page.waitForFunction(() => !/^loading/.test(document.querySelector("#status").textContent));
  return { browser, page };
}

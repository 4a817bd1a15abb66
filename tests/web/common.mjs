// Chromium and the steps of a journey, for the scripts of this directory. Environment: CHROMIUM (path of the browser).
import { chromium } from "playwright-core";

export const TIMEOUT_MS = 20_000;

export const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM || "/usr/bin/chromium",
  args: ["--no-sandbox"],
  timeout: TIMEOUT_MS,
});

/** A page in a browser without cookies. A console of a test has a certificate that the browser does not know. */
export async function newPage(options = {}) {
  const context = await browser.newContext({ ignoreHTTPSErrors: true, locale: "en", ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(TIMEOUT_MS);
  return page;
}

export async function step(text, run) {
  try {
    await run();
    console.log(`ok    ${text}`);
  } catch (error) {
    console.log(`FAIL  ${text}: ${error.message}`);
    await browser.close();
    process.exit(1);
  }
}

/** Logs in from the login page by the provider of that name: provider.mjs. */
export async function logInBy(provider, page, user) {
  await page.getByRole("link", { name: `Log in with ${provider}` }).click();
  await page.locator("input[name=login]").fill(user);
  await page.locator("input[name=password]").fill("any");
  await page.locator("button[type=submit]").click();
  await page.getByRole("button", { name: "Continue" }).click();
}

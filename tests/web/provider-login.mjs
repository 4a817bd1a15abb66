// Logs in by a provider of OpenID Connect in Chromium: provider.mjs. Environment: CONSOLE_URL, PROVIDER (its name on the login page),
// VM (a VM that the user "ops" sees).
import { chromium } from "playwright-core";

const { CONSOLE_URL: url, PROVIDER: provider, VM: vm } = process.env;
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM || "/usr/bin/chromium", args: ["--no-sandbox"] });

async function step(text, run) {
  try {
    await run();
    console.log(`ok    ${text}`);
  } catch (error) {
    console.log(`FAIL  ${text}: ${error.message}`);
    await browser.close();
    process.exit(1);
  }
}

/** Logs in as that user, in a browser without cookies. */
async function logIn(user) {
  const page = await (await browser.newContext({ locale: "en" })).newPage();
  page.setDefaultTimeout(20_000);
  await page.goto(`${url}/?q=${vm}`);
  await page.getByRole("link", { name: `Log in by ${provider}` }).click();
  await page.locator("input[name=login]").fill(user);
  await page.locator("input[name=password]").fill("any");
  await page.locator("button[type=submit]").click();
  await page.getByRole("button", { name: "Continue" }).click();
  return page;
}

await step("a user with a role is logged in, at the same page", async () => {
  const page = await logIn("ops");
  await page.locator(`[data-vm="${vm}"]`).waitFor();
  await page.getByText("The ops").waitFor();
  if (new URL(page.url()).search !== `?q=${vm}`) throw new Error(page.url());
  await page.getByRole("button", { name: "Log out" }).click();
  await page.getByRole("link", { name: `Log in by ${provider}` }).waitFor();
});
await step("a user without a role gets the reason", async () => {
  const page = await logIn("mallory");
  await page.getByText("You have no role that permits a login here.").waitFor();
});
await browser.close();

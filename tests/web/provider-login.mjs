// Logs in by a provider of OpenID Connect in Chromium: provider.mjs. Environment: CONSOLE_URL, PROVIDER (its name on the login page),
// VM (a VM that the user "ops" sees), CHROMIUM (see common.mjs).
import { browser, logInBy, newPage, step } from "./common.mjs";

const { CONSOLE_URL: url, PROVIDER: provider, VM: vm } = process.env;

/** Logs in as that user, in a browser without cookies. */
async function logIn(user) {
  const page = await newPage();
  await page.goto(`${url}/?q=${vm}`);
  await logInBy(provider, page, user);
  return page;
}

await step("a user with a role is logged in, at the same page", async () => {
  const page = await logIn("ops");
  await page.locator(`[data-vm="${vm}"]`).waitFor();
  await page.getByText("The ops").waitFor();
  if (new URL(page.url()).search !== `?q=${vm}`) throw new Error(page.url());
  await page.getByRole("button", { name: "Log out" }).click();
  await page.getByRole("link", { name: `Log in with ${provider}` }).waitFor();
});
await step("a user without a role gets the reason", async () => {
  const page = await logIn("mallory");
  await page.getByText("You have no role that permits a login here.").waitFor();
});
await browser.close();

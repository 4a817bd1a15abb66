// Drives the web console in Chromium: login, screen, serial console, stop and start of a VM, a VM of a pool, logout.
// Environment: CONSOLE_URL, CONSOLE_USER, CONSOLE_PASSWORD, VM (a running VM that the user may stop and start),
// optional SCREEN (path of a PNG file, if the VM runs and the user may use its screen), SERIAL (a text that the serial console shows
// after the Enter key, under the same conditions), RESET (if the VM runs and the user may reset it),
// OVERVIEW (another VM, if the user sees all VMs), POOL (a pool with a free VM, of which the user has none), SCREENSHOT (path of a PNG file) and CHROMIUM (path of the browser).
import { readFileSync } from "node:fs";
import { chromium } from "playwright-core";

const TIMEOUT_MS = 20_000;
/** Until an emulated guest writes to its serial console. */
const BOOT_TIMEOUT_MS = 120_000;

function required(name) {
  const value = process.env[name];
  if (value) return value;
  console.error(`The environment variable ${name} is not set.`);
  process.exit(2);
}

const url = required("CONSOLE_URL");
const user = required("CONSOLE_USER");
const password = required("CONSOLE_PASSWORD");
const vm = required("VM");

const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM || "/usr/bin/chromium",
  args: ["--no-sandbox"],
  timeout: TIMEOUT_MS,
});
// A console of a test has a certificate that the browser does not know.
const context = await browser.newContext({ ignoreHTTPSErrors: true, locale: "en" });
const page = await context.newPage();
page.setDefaultTimeout(TIMEOUT_MS);

const problems = [];
// The browser logs rejections as errors; that of the login, of the missing session and of the size above the limit are expected.
const isExpected = (message) =>
  /status of (401|422)/.test(message.text()) && /\/api\/v1\/(login|session|vms\/[^/]+\/size)$/.test(message.location().url);
page.on("console", (message) => {
  if (message.type() === "error" && !isExpected(message)) problems.push(message.text());
});
page.on("pageerror", (error) => problems.push(String(error)));

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

const STANDARD = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"];
const axe = readFileSync(new URL("node_modules/axe-core/axe.min.js", import.meta.url), "utf8");
// `evaluate` of a text would need `unsafe-eval` in the content security policy; the protocol of the browser does not.
const protocol = await context.newCDPSession(page);
async function evaluate(expression) {
  const { result, exceptionDetails } = await protocol.send("Runtime.evaluate", { expression, awaitPromise: true, returnByValue: true });
  if (exceptionDetails) throw new Error(exceptionDetails.exception?.description ?? exceptionDetails.text);
  return result.value;
}
const checkAccess = (place) =>
  step(`${place} has no violation of WCAG 2.2 AA that axe finds`, async () => {
    for (const colorScheme of ["light", "dark"]) {
      await page.emulateMedia({ colorScheme });
      await evaluate(axe);
      const { passes, violations } = await evaluate(`axe.run({ runOnly: ${JSON.stringify(STANDARD)} })`);
      const found = violations.map(({ id, nodes }) => `${colorScheme}: ${id}: ${nodes[0].html}`);
      if (found.length > 0 || passes.length === 0) throw new Error(found.join("; ") || "axe has checked nothing");
    }
  });

const userField = page.getByLabel("User", { exact: true });
const row = page.locator(`[data-vm="${vm}"]`);
const rowRequests = (state) => page.locator(`[data-vm="${vm}"][data-requested="${state}"]`).waitFor();

async function logIn(secret) {
  await userField.fill(user);
  await page.getByLabel("Password").fill(secret);
  await page.getByRole("button", { name: "Log in" }).click();
}

await step("the console shows the login form", async () => {
  await page.goto(url, { timeout: TIMEOUT_MS });
  await userField.waitFor();
});
await checkAccess("the login form");
await step("a wrong password is rejected", async () => {
  await logIn(`${password}-wrong`);
  await page.getByText("User or password is wrong.").waitFor();
});
await step("the right password shows the list", async () => {
  await logIn(password);
  await row.waitFor();
});
await checkAccess("the first list");
await step("the list is in German after a change of the language, and in English again, without a reload", async () => {
  const list = await row.elementHandle();
  await page.getByLabel("Language", { exact: true }).selectOption("de");
  await page.getByRole("heading", { level: 1, name: /^(Virtuelle Maschinen|Übersicht)$/ }).waitFor();
  await page.locator('html[lang="de"]').waitFor({ state: "attached" });
  await page.getByLabel("Sprache", { exact: true }).selectOption("en");
  await page.getByRole("heading", { level: 1, name: /^(Virtual machines|Overview)$/ }).waitFor();
  if (!(await list.evaluate((element) => element.isConnected))) throw new Error("the list is another one");
});
if (process.env.SCREEN) {
  const canvas = page.locator(".picture canvas");
  const hasPicture = (element) => {
    if (!element.width || !element.height) return false;
    const { data } = element.getContext("2d").getImageData(0, 0, element.width, element.height);
    const pixels = new Uint32Array(data.buffer);
    return pixels.some((pixel) => pixel !== pixels[0]);
  };
  await step("the screen shows a picture that is not uniform", async () => {
    await page.getByRole("link", { name: `Screen ${vm}`, exact: true }).click();
    await canvas.waitFor();
    const end = Date.now() + TIMEOUT_MS;
    // `waitForFunction` would need `unsafe-eval` in the content security policy.
    while (!(await canvas.evaluate(hasPicture))) {
      if (Date.now() > end) throw new Error("the picture is uniform");
      await page.waitForTimeout(200);
    }
    await page.screenshot({ path: process.env.SCREEN });
  });
  await step("the screen accepts a key and leads back to the list", async () => {
    await canvas.press("Enter");
    await page.getByRole("link", { name: "List of VMs" }).click();
    await row.waitFor();
  });
}
const openMore = () => page.getByRole("button", { name: `More actions ${vm}`, exact: true }).click();
if (process.env.SERIAL) {
  await step(`the serial console shows ${process.env.SERIAL}`, async () => {
    await openMore();
    await page.getByRole("link", { name: "Serial console", exact: true }).click();
    const terminal = page.getByLabel(`Serial console of ${vm}.`);
    await terminal.waitFor({ state: "attached" });
    await terminal.press("Enter");
    await page.locator(".xterm-rows").getByText(process.env.SERIAL).last().waitFor({ timeout: BOOT_TIMEOUT_MS });
  });
  await step("the serial console leads back to the list", async () => {
    await page.getByRole("link", { name: "List of VMs" }).click();
    await row.waitFor();
  });
}
// A VM that runs. The dialog asks before a reset.
if (process.env.RESET) {
  const press = async (answer) => {
    await openMore();
    await page.getByRole("button", { name: "Reset…", exact: true }).click();
    await page.getByRole("dialog").getByRole("button", { name: answer }).click();
    await page.getByRole("dialog").waitFor({ state: "hidden" });
  };
  await step("a reset needs a confirmation", () => press("Cancel"));
  await step("Reset is requested", async () => {
    await press("Reset");
    await page.getByText(`Reset of ${vm} requested.`).waitFor();
  });
}
await step("Stop requests the state Stopped", async () => {
  await page.getByRole("button", { name: `Stop ${vm}`, exact: true }).click();
  await rowRequests("Stopped");
});
await step("Start requests the state Running", async () => {
  await page.getByRole("button", { name: `Start ${vm}`, exact: true }).click();
  await rowRequests("Running");
});
if (process.env.OVERVIEW) {
  const other = page.locator(`[data-vm="${process.env.OVERVIEW}"]`);
  const filter = page.getByLabel("Filter", { exact: true });
  await step("the overview shows all VMs, and its address has the filter", async () => {
    await page.getByRole("link", { name: "Overview", exact: true }).click();
    await row.waitFor();
    await filter.fill(process.env.OVERVIEW);
    await row.waitFor({ state: "detached" });
    await page.reload({ timeout: TIMEOUT_MS });
    await other.waitFor();
    if ((await row.count()) > 0) throw new Error("the filter has no effect");
    await filter.fill("");
    await row.waitFor();
  });
  await step("Name orders the rows in the other direction", async () => {
    const first = await page.locator("tbody tr").first().getAttribute("data-vm");
    await page.getByRole("button", { name: "Name", exact: true }).click();
    await page.locator(`tbody tr:first-child:not([data-vm="${first}"])`).waitFor();
  });
  await step("selected VMs stop after a confirmation, and start", async () => {
    await page.getByLabel("Select all").check();
    await page.getByRole("button", { name: /^Stop \d+ VMs?$/ }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Stop" }).click();
    await rowRequests("Stopped");
    await page.getByRole("button", { name: /^Start \d+ VMs?$/ }).click();
    await rowRequests("Running");
  });
  const change = async (size) => {
    await page.getByLabel("Memory", { exact: true }).fill(size);
    await page.getByRole("button", { name: "Change size" }).click();
  };
  await step("a size above the limit is rejected at its field", async () => {
    await row.getByRole("link", { name: vm, exact: true }).click();
    await change("64 GiB");
    await page.locator("#ram-limit.error").waitFor();
  });
  await checkAccess("the overview with a VM and a wrong size");
  await step("a size within the limit is requested", async () => {
    await change("256 MiB");
    await page.locator("#ram-limit:not(.error)").waitFor();
    await page.waitForFunction(() => {
      const { value, defaultValue } = document.querySelector("#ram");
      return value === "256 MiB" && defaultValue === value;
    });
    await page.getByRole("link", { name: "Close", exact: true }).click();
  });
  await step("the Escape key closes the VM beside the list", async () => {
    await row.getByRole("link", { name: vm, exact: true }).click();
    const details = page.getByRole("complementary", { name: vm });
    await details.getByRole("heading", { name: "Events" }).waitFor();
    await page.keyboard.press("Escape");
    await details.waitFor({ state: "detached" });
    // The list gets the focus in the next frame.
    await page.waitForFunction((link) => link === document.activeElement, await row.getByRole("link").elementHandle());
  });
  await page.getByRole("link", { name: "My VMs", exact: true }).click();
  await row.waitFor();
  await checkAccess("the list of own VMs");
}
if (process.env.POOL) {
  const pool = page.locator(`[data-pool="${process.env.POOL}"]`);
  const badge = page.locator("[data-vm]").getByText(`Pool ${process.env.POOL}`, { exact: true });
  await step("the pool gives a VM", async () => {
    await pool.getByRole("button", { name: "Get a VM" }).click();
    await badge.waitFor();
  });
  await step("the VM is given back after a confirmation", async () => {
    await pool.getByRole("button", { name: "Give back" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Give back" }).click();
    await badge.waitFor({ state: "detached" });
  });
}
if (process.env.SCREENSHOT) {
  await step("a screenshot is written", () => page.screenshot({ path: process.env.SCREENSHOT }));
}
await step("the logout shows the login form", async () => {
  await page.getByRole("button", { name: "Log out" }).click();
  await userField.waitFor();
});
await step("the login form remains after a reload", async () => {
  await page.reload({ timeout: TIMEOUT_MS });
  await userField.waitFor();
  if ((await row.count()) > 0) throw new Error("the list is visible");
});
await step("the browser logged no error and no violation of the content security policy", () => {
  if (problems.length > 0) throw new Error(problems.join("; "));
});
await browser.close();

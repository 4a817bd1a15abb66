// Drives the web console in Chromium: login, screen, serial console, viewer, take-over, stop and start of a VM, a VM of a pool, logout.
// axe checks each page and dialog. Environment: CONSOLE_URL, CONSOLE_USER, CONSOLE_PASSWORD, VM (a VM of the user); all others are optional.
//
// | variable | steps |
// |---|---|
// | PROVIDER | the login by the provider with this name on the login page: provider.mjs. Otherwise by the password, with the keyboard only |
// | SCREEN | the screen, if the VM runs and the user may use it: path of a PNG file |
// | GERMAN | with SCREEN: the user presses the key ß of a German keyboard. The caller looks into the guest |
// | SERIAL | a text that the serial console shows after the Enter key, under the same conditions |
// | VIEWER | spicy-screenshot opens the file for a SPICE viewer, under the same conditions |
// | OTHER_USER | this user takes over the screen, and has the same password |
// | RESET | the user resets the VM, which runs |
// | POWER | the user stops and starts the VM, which shall run |
// | OVERVIEW | the user sees all VMs, such as this one |
// | POOL | a pool with a free VM, of which the user has none |
// | SCREENSHOT | path of a PNG file |
// | SHEETS | each page in each language, theme and width, as PNG files in .cache/web/sheets |
// | CHROMIUM | see common.mjs |
import { execFile } from "node:child_process";
import { readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { browser, logInBy, newPage, step, TIMEOUT_MS } from "./common.mjs";

/** Until an emulated guest writes to its serial console. */
const BOOT_TIMEOUT_MS = 120_000;
/** Until the picture of a page no longer changes. */
const SETTLE_MS = 1_500;
const HEIGHT = 720;
const WIDTHS = [360, 1280];
const THEMES = ["dark", "light"];
const LANGUAGES = ["en", "de"];
const SHEETS = fileURLToPath(new URL("../../.cache/web/sheets", import.meta.url));
/** More presses of the Tab key than a page has elements. */
const TABS_MAX = 60;

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
const { PROVIDER: provider, OTHER_USER: otherUser } = process.env;

const page = await newPage();
const context = page.context();

const problems = [];
// The browser logs rejections as errors; that of the login, of the missing session and of the size above the limit are expected.
const isExpected = (message) =>
  /status of (401|422)/.test(message.text()) && /\/api\/v1\/(login|session|vms\/[^/]+\/size)$/.test(message.location().url);
const isOfProvider = () => new URL(page.url()).origin !== new URL(url).origin;
page.on("console", (message) => {
  if (message.type() === "error" && !isExpected(message) && !isOfProvider()) problems.push(message.text());
});
page.on("pageerror", (error) => isOfProvider() || problems.push(String(error)));

const STANDARD = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"];
const axe = readFileSync(new URL("node_modules/axe-core/axe.min.js", import.meta.url), "utf8");
// The guest chooses the colours of its text.
const runAxe = `axe.run({ exclude: [".xterm"] }, { runOnly: ${JSON.stringify(STANDARD)} })`;
// `evaluate` of a text would need `unsafe-eval` in the content security policy; the protocol of the browser does not.
const protocol = await context.newCDPSession(page);
async function evaluate(expression) {
  const { result, exceptionDetails } = await protocol.send("Runtime.evaluate", { expression, awaitPromise: true, returnByValue: true });
  if (exceptionDetails) throw new Error(exceptionDetails.exception?.description ?? exceptionDetails.text);
  return result.value;
}
async function expectNoViolation() {
  await evaluate(axe);
  const found = [];
  for (const colorScheme of THEMES) {
    await page.emulateMedia({ colorScheme });
    for (const width of WIDTHS) {
      await page.setViewportSize({ width, height: HEIGHT });
      const { passes, violations } = await evaluate(runAxe);
      if (passes.length === 0) throw new Error("axe has checked nothing");
      for (const { id, nodes } of violations) {
        for (const { html, failureSummary } of nodes) found.push(`${id} (${colorScheme}, ${width} px): ${html}\n${failureSummary}`);
      }
    }
  }
  if (found.length > 0) throw new Error(found.join("\n"));
}
/** The pages of the contact sheets. */
const visited = [];
/** `file` is the name of a page in the contact sheets. */
async function checkAccess(place, file) {
  if (file) visited.push({ file, address: page.url() });
  await step(`${place} has no violation of WCAG 2.2 AA that axe finds`, expectNoViolation);
}

const userField = page.getByLabel("User", { exact: true });
const row = page.locator(`[data-vm="${vm}"]`);
const rowRequests = (state) => page.locator(`[data-vm="${vm}"][data-requested="${state}"]`).waitFor();

const dialog = page.getByRole("dialog");
const backToList = async () => {
  await page.getByRole("link", { name: "List of VMs" }).click();
  await row.waitFor();
};

async function logIn(at, name, secret) {
  await at.getByLabel("User", { exact: true }).fill(name);
  await at.getByLabel("Password").fill(secret);
  await at.getByRole("button", { name: "Log in", exact: true }).click();
}

/** Presses the Tab key until the element has the focus. */
async function tabTo(element) {
  for (let count = 0; count < TABS_MAX; count++) {
    if (await element.evaluate((it) => it === document.activeElement)) return;
    await page.keyboard.press("Tab");
  }
  throw new Error("the Tab key does not reach the element");
}

await step("the console shows the login form", async () => {
  await page.goto(url, { timeout: TIMEOUT_MS });
  await userField.waitFor();
});
await checkAccess("the login form", "login");
await step("a wrong password is rejected", async () => {
  await logIn(page, user, `${password}-wrong`);
  await page.getByText("User or password is wrong.").waitFor();
});
if (provider) {
  await step("a login by the provider shows the list and the full name", async () => {
    await logInBy(provider, page, user);
    await row.waitFor();
    await page.getByText(`The ${user}`).waitFor();
  });
} else {
  await step("the right password shows the list, with the keyboard only", async () => {
    await page.reload({ timeout: TIMEOUT_MS });
    await userField.waitFor();
    await tabTo(userField);
    await page.keyboard.type(user);
    await tabTo(page.getByLabel("Password"));
    await page.keyboard.type(password);
    await page.keyboard.press("Enter");
    await row.waitFor();
  });
}
await checkAccess("the first list", "first");
await step("the list is in German after a change of the language, and in English again, without a reload", async () => {
  const list = await row.elementHandle();
  await page.getByLabel("Language", { exact: true }).selectOption("de");
  await page.getByRole("heading", { level: 1, name: /^(Virtuelle Maschinen|Übersicht)$/ }).waitFor();
  await page.locator('html[lang="de"]').waitFor({ state: "attached" });
  await page.getByLabel("Sprache", { exact: true }).selectOption("en");
  await page.getByRole("heading", { level: 1, name: /^(Virtual machines|Overview)$/ }).waitFor();
  if (!(await list.evaluate((element) => element.isConnected))) throw new Error("the list is another one");
});
const openMore = () => page.getByRole("button", { name: `More actions ${vm}`, exact: true }).click();
const screenLink = row.getByRole("link", { name: `Screen ${vm}`, exact: true });
const canvas = page.locator(".picture canvas");
if (process.env.SCREEN) {
  const hasPicture = (element) => {
    if (!element.width || !element.height) return false;
    const { data } = element.getContext("2d").getImageData(0, 0, element.width, element.height);
    const pixels = new Uint32Array(data.buffer);
    return pixels.some((pixel) => pixel !== pixels[0]);
  };
  await step("the Enter key opens the screen, which shows a picture that is not uniform", async () => {
    await tabTo(screenLink);
    await page.keyboard.press("Enter");
    await canvas.waitFor();
    const end = Date.now() + TIMEOUT_MS;
    // `waitForFunction` would need `unsafe-eval` in the content security policy.
    while (!(await canvas.evaluate(hasPicture))) {
      if (Date.now() > end) throw new Error("the picture is uniform");
      await page.waitForTimeout(200);
    }
    await page.screenshot({ path: process.env.SCREEN });
  });
  if (process.env.GERMAN) {
    await step("the screen accepts the key ß of a German keyboard", async () => {
      await canvas.press("Enter");
      // Playwright has the keys of a US keyboard only.
      const key = { key: "ß", code: "Minus", windowsVirtualKeyCode: 219 };
      await protocol.send("Input.dispatchKeyEvent", { type: "keyDown", text: "ß", ...key });
      await protocol.send("Input.dispatchKeyEvent", { type: "keyUp", ...key });
    });
  }
  await checkAccess("the screen", "screen");
  await step("the dialog that types a text has no violation", async () => {
    await page.getByRole("button", { name: "Paste…" }).click();
    await dialog.waitFor();
    await expectNoViolation();
    await dialog.getByRole("button", { name: "Close" }).click();
  });
  await step("Ctrl+Alt+Shift leaves the guest for the toolbar", async () => {
    await canvas.focus();
    await page.keyboard.press("Control+Alt+Shift");
    await page.locator(".tools button:first-child:focus").waitFor();
  });
  await step("the screen accepts a key and leads back to the list", async () => {
    // A key that does not change the guest's screen, which may have ß.
    await canvas.press("Shift");
    await backToList();
  });
}
if (process.env.SERIAL) {
  await step(`the serial console shows ${process.env.SERIAL}`, async () => {
    await openMore();
    await page.getByRole("link", { name: "Serial console", exact: true }).click();
    const terminal = page.getByLabel(`Serial console of ${vm}.`);
    await terminal.waitFor({ state: "attached" });
    await terminal.press("Enter");
    await page.locator(".xterm-rows").getByText(process.env.SERIAL).last().waitFor({ timeout: BOOT_TIMEOUT_MS });
  });
  await checkAccess("the serial console", "serial");
  await step("the serial console leads back to the list", backToList);
}
if (process.env.VIEWER) {
  await step("a SPICE client gets a picture with the values of the file for a viewer", async () => {
    await openMore();
    const download = page.waitForEvent("download");
    await page.getByRole("button", { name: "Open in viewer…" }).click();
    const file = readFileSync(await (await download).path(), "utf8");
    const value = (key) => file.match(new RegExp(`^${key}=(.*)$`, "m"))?.[1];
    await dialog.getByText(value("host"), { exact: true }).waitFor();
    const picture = join(tmpdir(), `journey-${process.pid}.ppm`);
    const uri = `spice://${value("host")}:${value("port")}`;
    // The client writes no file without a picture.
    const client = ["--uri", uri, "--password", value("password"), "--out-file", picture];
    await promisify(execFile)("spicy-screenshot", client, { timeout: TIMEOUT_MS });
    if (!readFileSync(picture, "latin1").startsWith("P6")) throw new Error("the client has written no picture");
    rmSync(picture);
  });
  await checkAccess("the dialog with the file for a viewer");
  await step("the dialog closes", async () => {
    await dialog.getByRole("button", { name: "Close" }).click();
    await dialog.waitFor({ state: "hidden" });
  });
}
if (otherUser) {
  const other = await newPage();
  await step("another user gets a question before a take-over", async () => {
    await screenLink.click();
    await canvas.waitFor();
    await other.goto(page.url(), { timeout: TIMEOUT_MS });
    await logIn(other, otherUser, password);
    await other.getByText(`If you take over, ${user} loses the connection.`).waitFor();
    await canvas.waitFor();
  });
  await step("after the take-over, the other user has the screen, and the first user gets the reason", async () => {
    await other.getByRole("button", { name: "Take over" }).click();
    await other.locator(".picture canvas").waitFor();
    await page.getByText(`${otherUser} has taken over the screen.`).waitFor();
  });
  await checkAccess("a screen that another user has");
  await step("the screen leads back to the list", async () => {
    await other.context().close();
    await backToList();
  });
}
// A VM that runs. The dialog asks before a reset.
if (process.env.RESET) {
  const press = async (answer) => {
    await openMore();
    await page.getByRole("button", { name: "Reset…", exact: true }).click();
    await dialog.waitFor();
    if (answer === "Cancel") await expectNoViolation();
    await dialog.getByRole("button", { name: answer }).click();
    await dialog.waitFor({ state: "hidden" });
  };
  await step("a reset needs a confirmation, and its dialog has no violation", () => press("Cancel"));
  await step("Reset is requested", async () => {
    await press("Reset");
    await page.getByText(`Reset of ${vm} requested.`).waitFor();
  });
}
if (process.env.POWER) {
  await step("Stop requests the state Stopped", async () => {
    await page.getByRole("button", { name: `Stop ${vm}`, exact: true }).click();
    await rowRequests("Stopped");
  });
  await step("Start requests the state Running", async () => {
    await page.getByRole("button", { name: `Start ${vm}`, exact: true }).click();
    await rowRequests("Running");
  });
}
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
  await checkAccess("the overview", "overview");
  await step("Name orders the rows in the other direction", async () => {
    const first = await page.locator("tbody tr").first().getAttribute("data-vm");
    await page.getByRole("button", { name: "Name", exact: true }).click();
    await page.locator(`tbody tr:first-child:not([data-vm="${first}"])`).waitFor();
  });
  await step("selected VMs stop after a confirmation, and start", async () => {
    await page.getByLabel("Select all").check();
    await page.getByRole("button", { name: /^Stop \d+ VMs?$/ }).click();
    await dialog.locator(".names", { hasText: vm }).waitFor();
    await expectNoViolation();
    await dialog.getByRole("button", { name: "Stop" }).click();
    await rowRequests("Stopped");
    await page.getByText("Result of each VM").waitFor();
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
  await checkAccess("the overview with a VM and a wrong size", "details");
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
  await checkAccess("the list of own VMs", "portal");
}
if (process.env.POOL) {
  const pool = page.locator(`[data-pool="${process.env.POOL}"]`);
  const badge = page.locator("[data-vm]").getByText(`Pool ${process.env.POOL}`, { exact: true });
  await step("the pool gives a VM", async () => {
    await pool.getByRole("button", { name: "Get a VM" }).click();
    await badge.waitFor();
    await pool.getByText("You have the VM").waitFor();
  });
  await checkAccess("the list with a VM of a pool", "pool");
  await step("the VM is given back after a confirmation", async () => {
    await pool.getByRole("button", { name: "Give back" }).click();
    await dialog.waitFor();
    await expectNoViolation();
    await dialog.getByRole("button", { name: "Give back" }).click();
    await badge.waitFor({ state: "detached" });
  });
}
if (process.env.SCREENSHOT) {
  await step("a screenshot is written", () => page.screenshot({ path: process.env.SCREENSHOT }));
}
if (process.env.SHEETS) {
  visited.push({ file: "list-no-match", address: `${url}/?q=no-such-vm#/portal` });
  const prefer = (language) => localStorage.setItem("language", language);
  const save = async (file, address, language, colorScheme) => {
    // Pages of the same context have the same login.
    const sheet = file === "login" ? await newPage() : await context.newPage();
    await sheet.addInitScript(prefer, language);
    await sheet.emulateMedia({ colorScheme });
    await sheet.goto(address, { timeout: TIMEOUT_MS });
    for (const width of WIDTHS) {
      await sheet.setViewportSize({ width, height: HEIGHT });
      await sheet.waitForTimeout(SETTLE_MS);
      await sheet.screenshot({ path: join(SHEETS, `${file}-${language}-${colorScheme}-${width}.png`), fullPage: true });
    }
    await sheet.close();
  };
  await step("each page is saved in each language, theme and width", async () => {
    for (const { file, address } of visited) {
      for (const language of LANGUAGES) {
        for (const colorScheme of THEMES) await save(file, address, language, colorScheme);
      }
    }
    await page.evaluate(prefer, "en");
  });
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

/** The terminal of the serial console: xterm.js with its addons, as a chunk that the browser loads on demand. */

import { FitAddon } from "@xterm/addon-fit";
import { SearchAddon } from "@xterm/addon-search";
import { Terminal, type ITheme } from "@xterm/xterm";

export interface GuestTerminal {
  xterm: Terminal;
  search: SearchAddon;
  /** Adapts rows and columns to the room, or sets the size that programs on a serial line expect. */
  resize(fits: boolean): void;
  setTheme(isDark: boolean): void;
  /** Sets the texts for screen readers. */
  setWords(label: string, tooMuchOutput: string): void;
  dispose(): void;
}

/** Programs on a serial line expect this size, since the line does not report one. */
const COLUMNS_MIN = 80;
const ROWS_MIN = 24;
const SCROLLBACK_ROWS = 10_000;
const CONTRAST_MIN = 4.5;
/** The colours of the theme (4, 10, 11, 12), which could hide text, and links (8), which hide their address. */
const IGNORED_OSC = [4, 8, 10, 11, 12];

/** On a background of the same colour, the minimal contrast changes the colour of the text. */
const LIGHT: ITheme = {
  background: "#ffffff",
  foreground: "#1b1f26",
  cursor: "#1b1f26",
  cursorAccent: "#ffffff",
  selectionBackground: "#b9d2f8",
  scrollbarSliderBackground: "#1b1f2640",
  scrollbarSliderHoverBackground: "#1b1f2670",
  scrollbarSliderActiveBackground: "#1b1f2690",
  black: "#1b1f26",
  red: "#b3201c",
  green: "#14713a",
  yellow: "#8a5300",
  blue: "#1d5fc4",
  magenta: "#8f2d94",
  cyan: "#0b6e7c",
  white: "#d3d8e0",
  brightBlack: "#545c69",
  brightRed: "#c8342f",
  brightGreen: "#1a7f44",
  brightYellow: "#946000",
  brightBlue: "#2f6fd6",
  brightMagenta: "#a23fa7",
  brightCyan: "#117a89",
  brightWhite: "#ffffff",
};
const DARK: ITheme = {
  background: "#14171c",
  foreground: "#e7eaf0",
  cursor: "#e7eaf0",
  cursorAccent: "#14171c",
  selectionBackground: "#35507d",
  scrollbarSliderBackground: "#e7eaf040",
  scrollbarSliderHoverBackground: "#e7eaf070",
  scrollbarSliderActiveBackground: "#e7eaf090",
  black: "#3b424e",
  red: "#ff8a80",
  green: "#5fd08c",
  yellow: "#f0b457",
  blue: "#7fb0ff",
  magenta: "#e39be7",
  cyan: "#62cfdd",
  white: "#d3d8e0",
  brightBlack: "#8d97a6",
  brightRed: "#ffaaa2",
  brightGreen: "#86e2aa",
  brightYellow: "#f7cb86",
  brightBlue: "#a6c8ff",
  brightMagenta: "#efbdf2",
  brightCyan: "#92e1eb",
  brightWhite: "#ffffff",
};
/** The addon needs colours with six digits. */
const MATCH_LIGHT = { matchBackground: "#ffe08a", activeMatchBackground: "#ff9f43" };
const MATCH_DARK = { matchBackground: "#5a4a12", activeMatchBackground: "#a35c00" };

export const matchColours = (isDark: boolean) => ({
  ...(isDark ? MATCH_DARK : MATCH_LIGHT),
  matchOverviewRuler: "#000000",
  activeMatchColorOverviewRuler: "#000000",
});

/**
 * xterm.js writes style elements and style attributes, which the content security policy rejects.
 * Adopted style sheets and the property `style` have the same effect, and the policy permits them.
 */
function createStyleElement(): HTMLElement {
  const sheet = new CSSStyleSheet();
  document.adoptedStyleSheets.push(sheet);
  return Object.defineProperties(Document.prototype.createElement.call(document, "template"), {
    textContent: { set: (css: string) => sheet.replaceSync(css) },
    remove: { value: () => (document.adoptedStyleSheets = document.adoptedStyleSheets.filter((other) => other !== sheet)) },
  });
}

/** xterm.js creates its style elements in `open`. Its option `documentOverride` does not reach all of them. */
function openWithoutStyleElements(xterm: Terminal, target: HTMLElement) {
  const create = (name: string) => (name === "style" ? createStyleElement() : Document.prototype.createElement.call(document, name));
  Object.defineProperty(document, "createElement", { value: create, configurable: true });
  try {
    xterm.open(target);
  } finally {
    // The function of the prototype is visible again.
    Reflect.deleteProperty(document, "createElement");
  }
}

/** The elements of the rows have style attributes for colours that are not in the palette. */
HTMLSpanElement.prototype.setAttribute = function (name, value) {
  if (name === "style") this.style.cssText = value;
  else Element.prototype.setAttribute.call(this, name, value);
};

export function createTerminal(target: HTMLElement, fontSize: number, isDark: boolean): GuestTerminal {
  const xterm = new Terminal({
    // The search highlights its matches by a function that xterm.js has not declared stable.
    allowProposedApi: true,
    fontFamily: 'ui-monospace, "Cascadia Mono", "DejaVu Sans Mono", "Noto Sans Mono", Menlo, Consolas, monospace',
    fontSize,
    logLevel: "off",
    minimumContrastRatio: CONTRAST_MIN,
    scrollback: SCROLLBACK_ROWS,
    theme: isDark ? DARK : LIGHT,
  });
  const room = new FitAddon();
  const search = new SearchAddon();
  xterm.loadAddon(room);
  xterm.loadAddon(search);
  // Titles (OSC 0, 1, 2), the clipboard (OSC 52) and the window (CSI t) are out of a guest's reach by default.
  for (const number of IGNORED_OSC) xterm.parser.registerOscHandler(number, () => true);
  openWithoutStyleElements(xterm, target);

  /** A small window shows a part of the terminal, which must contain the cursor. */
  function showCursor() {
    const view = target.parentElement;
    const rows = target.querySelector<HTMLElement>(".xterm-screen");
    if (!view || !rows || (view.scrollWidth <= view.clientWidth && view.scrollHeight <= view.clientHeight)) return;
    const { cursorX, cursorY } = xterm.buffer.active;
    const [width, height] = [rows.offsetWidth / xterm.cols, rows.offsetHeight / xterm.rows];
    const scroll = (position: number, start: number, size: number, room: number) =>
      start < position ? start - room / 4 : start + 2 * size > position + room ? start + 2 * size - room : position;
    // The left end of a line is visible as long as the line permits it.
    view.scrollLeft = cursorX * width < view.clientWidth - 2 * width ? 0 : scroll(view.scrollLeft, cursorX * width, width, view.clientWidth);
    view.scrollTop = scroll(view.scrollTop, cursorY * height, height, view.clientHeight);
  }
  xterm.onCursorMove(showCursor);
  scrollByTouch(xterm, target);

  return {
    xterm,
    search,
    resize(fits) {
      const size = fits ? room.proposeDimensions() : { cols: COLUMNS_MIN, rows: ROWS_MIN };
      // The terminal is not visible if a value is not a number.
      if (!size || !(size.cols > 0 && size.rows > 0)) return;
      xterm.resize(Math.max(COLUMNS_MIN, size.cols), Math.max(ROWS_MIN, size.rows));
      showCursor();
    },
    setTheme: (isDark) => void (xterm.options.theme = isDark ? DARK : LIGHT),
    setWords(label, tooMuchOutput) {
      xterm.textarea?.setAttribute("aria-label", label);
      Terminal.strings.tooMuchOutput = tooMuchOutput;
    },
    dispose: () => xterm.dispose(),
  };
}

/** xterm.js scrolls by wheel only. A window with less rows than the terminal scrolls by itself. */
function scrollByTouch(xterm: Terminal, target: HTMLElement) {
  let previous = 0;
  target.addEventListener("touchstart", ({ touches }) => void (previous = touches[0]!.clientY), { passive: true });
  target.addEventListener(
    "touchmove",
    ({ touches }) => {
      const height = target.querySelector<HTMLElement>(".xterm-screen")!.offsetHeight / xterm.rows;
      const lines = Math.trunc((previous - touches[0]!.clientY) / height);
      previous -= lines * height;
      xterm.scrollLines(lines);
    },
    { passive: true },
  );
}

/** The text of the terminal with its scrollback. A line that the terminal has wrapped is one line. */
export function textOf({ buffer: { normal } }: Terminal): string {
  const lines: string[] = [];
  for (let i = 0; i < normal.length; i++) {
    const line = normal.getLine(i)!;
    const isContinued = normal.getLine(i + 1)?.isWrapped === true;
    const text = line.translateToString(!isContinued);
    if (line.isWrapped) lines[lines.length - 1] += text;
    else lines.push(text);
  }
  return `${lines.join("\n").trimEnd()}\n`;
}

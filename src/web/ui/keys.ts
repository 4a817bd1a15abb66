/** Keys of a PC keyboard, and layouts: the keys that write a character. */

import type RFB from "@novnc/novnc";

/** QEMU uses the physical key in `code`, and the X11 keysym only if it does not know the key. */
export interface Key {
  keysym: number;
  code: string | null;
}

export const CONTROL: Key = { keysym: 0xffe3, code: "ControlLeft" };
export const ALT: Key = { keysym: 0xffe9, code: "AltLeft" };
export const SHIFT: Key = { keysym: 0xffe1, code: "ShiftLeft" };
export const SUPER: Key = { keysym: 0xffeb, code: "MetaLeft" };
export const DELETE: Key = { keysym: 0xffff, code: "Delete" };
export const ESCAPE: Key = { keysym: 0xff1b, code: "Escape" };
export const TAB: Key = { keysym: 0xff09, code: "Tab" };
export const BACKSPACE: Key = { keysym: 0xff08, code: "Backspace" };
const ENTER: Key = { keysym: 0xff0d, code: "Enter" };
const ALT_GR: Key = { keysym: 0xfe03, code: "AltRight" };
export const FUNCTION_KEYS: Key[] = Array.from({ length: 12 }, (_, i) => ({ keysym: 0xffbe + i, code: `F${i + 1}` }));

export const LAYOUTS = ["us", "de", "deNoDeadKeys"] as const;
export type Layout = (typeof LAYOUTS)[number];

/** A key with its modifiers. After a dead key, a space writes the character of the key itself. */
interface Stroke {
  code: string;
  modifiers: Key[];
  isDead: boolean;
}

const CODES = [
  "Backquote Digit1 Digit2 Digit3 Digit4 Digit5 Digit6 Digit7 Digit8 Digit9 Digit0 Minus Equal",
  "KeyQ KeyW KeyE KeyR KeyT KeyY KeyU KeyI KeyO KeyP BracketLeft BracketRight Backslash",
  "KeyA KeyS KeyD KeyF KeyG KeyH KeyJ KeyK KeyL Semicolon Quote",
  "IntlBackslash KeyZ KeyX KeyC KeyV KeyB KeyN KeyM Comma Period Slash Space",
]
  .join(" ")
  .split(" ");

const GERMAN = {
  plain: "^1234567890ß´" + "qwertzuiopü+#" + "asdfghjklöä" + "<yxcvbnm,.- ",
  shift: '°!"§$%&/()=?`' + "QWERTZUIOPÜ*'" + "ASDFGHJKLÖÄ" + ">YXCVBNM;:_ ",
  altGr: { Digit2: "²", Digit3: "³", Digit7: "{", Digit8: "[", Digit9: "]", Digit0: "}", Minus: "\\", KeyQ: "@", KeyE: "€", BracketRight: "~", IntlBackslash: "|", KeyM: "µ" },
};

/** The characters in the order of `CODES`. */
const CHARACTERS: Record<Layout, { plain: string; shift: string; altGr: Record<string, string>; dead: string }> = {
  us: {
    plain: "`1234567890-=" + "qwertyuiop[]\\" + "asdfghjkl;'" + "\\zxcvbnm,./ ",
    shift: "~!@#$%^&*()_+" + "QWERTYUIOP{}|" + 'ASDFGHJKL:"' + "|ZXCVBNM<>? ",
    altGr: {},
    dead: "",
  },
  de: { ...GERMAN, dead: "^´`" },
  deNoDeadKeys: { ...GERMAN, dead: "" },
};

function strokesOf(layout: Layout): Map<string, Stroke> {
  const { plain, shift, altGr, dead } = CHARACTERS[layout];
  const strokes = new Map<string, Stroke>();
  const add = (character: string, code: string, modifiers: Key[]) => {
    if (!strokes.has(character)) strokes.set(character, { code, modifiers, isDead: dead.includes(character) });
  };
  CODES.forEach((code, i) => add(plain[i]!, code, []));
  CODES.forEach((code, i) => add(shift[i]!, code, [SHIFT]));
  for (const [code, character] of Object.entries(altGr)) add(character, code, [ALT_GR]);
  return strokes;
}

const CONTROL_KEYS: Record<string, Key> = { "\n": ENTER, "\t": TAB };

/** Keysyms of Latin-1 characters are their code points. */
function keysymOf(character: string): number {
  const point = character.codePointAt(0)!;
  return point < 0x100 ? point : 0x1000000 + point;
}

/** Presses the keys in their order, and releases them in the opposite order. */
export function pressKeys(rfb: RFB, keys: Key[]) {
  for (const { keysym, code } of keys) rfb.sendKey(keysym, code, true);
  for (const { keysym, code } of [...keys].reverse()) rfb.sendKey(keysym, code, false);
}

/** Line ends of Windows are one key. An accent that follows its letter is a part of the letter. */
export const charactersOf = (text: string) => [...text.replace(/\r\n?/g, "\n").normalize("NFC")];

/** The characters that the layout has no key for, each one once. */
export function unknownCharacters(text: string, layout: Layout): string[] {
  const strokes = strokesOf(layout);
  return [...new Set(charactersOf(text))].filter((character) => !(character in CONTROL_KEYS) && !strokes.has(character));
}

/** Returns a function that presses the keys of a character. Without a key in the layout, QEMU gets the keysym if `unknown` is `send`. */
export function createTypist(rfb: RFB, layout: Layout, unknown: "send" | "omit"): (character: string) => void {
  const strokes = strokesOf(layout);
  return (character) => {
    const keysym = keysymOf(character);
    const control = CONTROL_KEYS[character];
    const stroke = strokes.get(character);
    if (control) pressKeys(rfb, [control]);
    else if (stroke) pressKeys(rfb, [...stroke.modifiers, { keysym, code: stroke.code }]);
    else if (unknown === "send") pressKeys(rfb, [{ keysym, code: null }]);
    if (stroke?.isDead) pressKeys(rfb, [{ keysym: 0x20, code: "Space" }]);
  };
}

/** Emulated keyboards have room for 16 events. A character has up to six, and the guest reads them with a delay. */
const CHARACTER_INTERVAL_MS = 20;

/** Types the text, and reports the number of typed characters. */
export async function typeText(rfb: RFB, layout: Layout, text: string, end: AbortSignal, report: (count: number) => void) {
  const type = createTypist(rfb, layout, "omit");
  let count = 0;
  for (const character of charactersOf(text)) {
    if (end.aborted) return;
    type(character);
    report(++count);
    await new Promise((resolve) => setTimeout(resolve, CHARACTER_INTERVAL_MS));
  }
}

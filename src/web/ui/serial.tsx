/** The serial console of a VM. */

import { useSignal, useSignalEffect, type Signal } from "@preact/signals";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import { DeviceHeader, FullScreenButton, leaveByKeyboard, Menu, Panel } from "./device";
import { saveFile, timeForName } from "./download";
import { LanguageSelect } from "./parts";
import { isDark, storedSignal } from "./settings";
import { list } from "./state";
import type { GuestTerminal } from "./terminal";
import { openSerial, type SerialConnection } from "./tty";
import { words } from "./words";
import "@xterm/xterm/css/xterm.css";
import "./serial.css";

const FONT_SIZES = ["10", "12", "14", "16", "18", "20", "24"] as const;
const fontSize = storedSignal<(typeof FONT_SIZES)[number]>("serialFontSize", FONT_SIZES, "14");
const size = storedSignal("serialSize", ["standard", "fit"], "standard");
const hasScreenReader = storedSignal("serialScreenReader", ["no", "yes"], "no");

/** Keys that touch keyboards do not have, or that browsers do not pass to the page. */
const KEYS: [name: string, input: string][] = [
  ["Esc", "\x1b"],
  ["Tab", "\t"],
  ["↑", "\x1b[A"],
  ["↓", "\x1b[B"],
  ["Ctrl+C", "\x03"],
  ["Ctrl+D", "\x04"],
  ["Ctrl+N", "\x0e"],
  ["Ctrl+T", "\x14"],
  ["Ctrl+W", "\x17"],
  ["Ctrl+Z", "\x1a"],
];
/** Control characters of a pasted text could be commands of the guest's shell. Tab and line ends remain. */
const CONTROL_CHARACTERS = /[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]/g;

export function SerialPage({ name }: { name: string }) {
  const page = useRef<HTMLElement>(null);
  const toolbar = useRef<HTMLDivElement>(null);
  const stage = useRef<HTMLDivElement>(null);
  const room = useRef<HTMLDivElement>(null);
  const serial = useSignal<SerialConnection | null>(null);
  /** The text that the dialog asks for; null closes it. */
  const pasted = useSignal<string | null>(null);
  const isSearching = useSignal(false);
  const vm = list.value?.find((vm) => vm.name === name);
  const row = vm?.row.value;
  const isRunning = row?.running === true;
  const isGone = list.value !== null && !row;
  const state = serial.value?.state.value ?? { is: "connecting" };
  const isConnected = state.is === "connected";
  const terminal = serial.value?.terminal.value ?? null;
  const hasOutput = serial.value?.hasOutput.value === true;

  useEffect(() => {
    serial.value = openSerial(name, ({ createTerminal }) => createTerminal(room.current!, Number(fontSize.peek()), isDark.peek()));
    return () => serial.value?.dispose();
  }, []);
  useEffect(() => (isRunning ? serial.value?.connect() : serial.value?.disconnect()), [isRunning]);
  useEffect(() => {
    if (isGone) serial.value?.forget();
  }, [isGone]);
  const { terminal: labelOf, tooMuchOutput } = words.serial;
  useEffect(() => terminal?.setWords(labelOf(name), tooMuchOutput), [terminal, tooMuchOutput]);
  useEffect(() => {
    if (!terminal) return;
    const observer = new ResizeObserver(() => terminal.resize(size.peek() === "fit"));
    observer.observe(stage.current!);
    return () => observer.disconnect();
  }, [terminal]);
  useEffect(() => {
    // A dialog or the toolbar may have the focus.
    if (terminal && isConnected && document.activeElement === document.body) terminal.xterm.focus();
  }, [terminal, isConnected]);
  useSignalEffect(() => {
    const terminal = serial.value?.terminal.value;
    if (!terminal) return;
    terminal.setTheme(isDark.value);
    terminal.xterm.options.screenReaderMode = hasScreenReader.value === "yes";
    terminal.xterm.options.fontSize = Number(fontSize.value);
    terminal.resize(size.value === "fit");
  });
  useEffect(() => leaveByKeyboard(stage.current!, () => toolbar.current?.querySelector<HTMLElement>("button")?.focus()), []);

  /** Before xterm.js, which sends most keys to the guest. */
  function handleKey(event: KeyboardEvent) {
    if (!event.ctrlKey || !event.shiftKey || event.altKey || !terminal) return;
    // Keyboards with other letters have the key at the same place.
    const letter = /^[a-z]$/i.test(event.key) ? event.key.toUpperCase() : event.code.replace("Key", "");
    const run = { C: () => copySelection(terminal), F: () => (isSearching.value = true) }[letter];
    if (!run) return;
    event.preventDefault();
    event.stopPropagation();
    run();
  }
  function handlePaste(event: ClipboardEvent) {
    const text = event.clipboardData?.getData("text/plain") ?? "";
    event.preventDefault();
    event.stopPropagation();
    if (!isConnected || text === "") return;
    if (/[\r\n]/.test(text)) pasted.value = text;
    else paste(terminal!, text);
  }
  const closeSearch = () => {
    isSearching.value = false;
    terminal?.xterm.focus();
  };
  return (
    <main class="device serial" ref={page}>
      <DeviceHeader name={name} vm={vm} other="screen" isConnected={isConnected} toolbar={toolbar}>
        {terminal && !isGone && (isConnected || hasOutput) && (
          <Tools name={name} terminal={terminal} isConnected={isConnected} pasted={pasted} isSearching={isSearching} page={page} />
        )}
      </DeviceHeader>
      {terminal && isSearching.value && <SearchBar terminal={terminal} close={closeSearch} />}
      <div class={`notice${hasOutput ? " strip" : ""}`} role="status">
        {isConnected ? (
          !hasOutput && (
            <p class="no-output">{words.serial.noOutput}</p>
          )
        ) : (
          <Panel name={name} vm={vm} state={state} text={words.serial} connect={() => serial.value?.connect()} />
        )}
      </div>
      <div class="stage" ref={stage} onKeyDownCapture={handleKey} onPasteCapture={handlePaste}>
        <div class={`tty${isGone || (!isConnected && !hasOutput) ? " concealed" : ""}`}>
          <div class="room" ref={room} />
        </div>
      </div>
      {terminal && pasted.value !== null && <PasteDialog terminal={terminal} pasted={pasted} isConnected={isConnected} />}
    </main>
  );
}

function copySelection({ xterm }: GuestTerminal) {
  if (xterm.hasSelection()) void navigator.clipboard.writeText(xterm.getSelection()).catch(() => {});
}

function paste({ xterm }: GuestTerminal, text: string) {
  xterm.paste(text.replace(CONTROL_CHARACTERS, ""));
  xterm.scrollToBottom();
}

interface ToolsProps {
  name: string;
  terminal: GuestTerminal;
  isConnected: boolean;
  pasted: Signal<string | null>;
  isSearching: Signal<boolean>;
  page: { current: HTMLElement | null };
}

function Tools({ name, terminal, isConnected, pasted, isSearching, page }: ToolsProps) {
  const text = words.serial;
  const { xterm } = terminal;
  /** The guest's keyboard is wanted after a click, but not after the Enter key on a button. */
  const focusGuest = (event: MouseEvent) => event.detail > 0 && xterm.focus();
  const press = (event: MouseEvent, input: string) => {
    const isArrow = xterm.modes.applicationCursorKeysMode && /^\x1b\[[A-D]$/.test(input);
    xterm.input(isArrow ? input.replace("[", "O") : input);
    focusGuest(event);
  };
  return (
    <>
      {isConnected && (
        <>
          <Menu label={text.keys}>
            <fieldset>
              {KEYS.map(([keyName, input]) => (
                <button type="button" key={keyName} aria-label={words.screen.key(words.keyName(keyName))} onClick={(event) => press(event, input)}>
                  {words.keyName(keyName)}
                </button>
              ))}
            </fieldset>
            <p>{words.device.leave}</p>
          </Menu>
          <button type="button" aria-haspopup="dialog" onClick={() => (pasted.value = "")}>
            {text.paste}…
          </button>
        </>
      )}
      <button type="button" aria-pressed={isSearching.value} onClick={() => (isSearching.value = !isSearching.value)}>
        {text.search}
      </button>
      <Menu label={text.view}>
        <label>
          {text.fontSize}
          <select value={fontSize.value} onChange={(event) => (fontSize.value = event.currentTarget.value as (typeof FONT_SIZES)[number])}>
            {FONT_SIZES.map((size) => (
              <option key={size} value={size}>
                {size}
              </option>
            ))}
          </select>
        </label>
        {(["standard", "fit"] as const).map((value) => (
          <label key={value}>
            <input type="radio" name="size" checked={size.value === value} onChange={() => (size.value = value)} />
            {text[value]}
          </label>
        ))}
        <label>
          <input
            type="checkbox"
            checked={hasScreenReader.value === "yes"}
            onChange={(event) => (hasScreenReader.value = event.currentTarget.checked ? "yes" : "no")}
          />
          {text.screenReader}
        </label>
        {isConnected && (
          <button type="button" data-closes title={text.sendSizeHint} onClick={(event) => press(event, `stty rows ${xterm.rows} cols ${xterm.cols}\r`)}>
            {text.sendSize}
          </button>
        )}
        {document.fullscreenEnabled && <FullScreenButton page={page} />}
        <button type="button" data-closes onClick={() => void saveText(name, terminal)}>
          {text.save}
        </button>
        <button
          type="button"
          data-closes
          onClick={(event) => {
            xterm.reset();
            focusGuest(event);
          }}
        >
          {text.reset}
        </button>
        <LanguageSelect />
      </Menu>
    </>
  );
}

async function saveText(name: string, { xterm }: GuestTerminal) {
  const { textOf } = await import("./terminal");
  saveFile(`${name}-serial-${timeForName()}.txt`, new Blob([textOf(xterm)], { type: "text/plain" }));
}

/** The dialog asks before a text with several lines is sent, since the guest executes each line at once. */
function PasteDialog({ terminal, pasted, isConnected }: { terminal: GuestTerminal; pasted: Signal<string | null>; isConnected: boolean }) {
  const text = words.serial;
  const dialog = useRef<HTMLDialogElement>(null);
  const input = useRef<HTMLTextAreaElement>(null);
  const button = useRef<HTMLButtonElement>(null);
  useEffect(() => {
    // Not in the markup: the text can be a password, and it must not remain in the page.
    input.current!.value = pasted.peek() ?? "";
    dialog.current!.showModal();
    if (pasted.peek()) button.current!.focus();
  }, []);
  const submit = (event: SubmitEvent) => {
    event.preventDefault();
    if (!isConnected) return;
    paste(terminal, input.current!.value);
    dialog.current!.close();
  };
  const close = () => {
    pasted.value = null;
    terminal.xterm.focus();
  };
  return (
    <dialog class="paste" ref={dialog} aria-labelledby="paste-title" onClose={close}>
      <h2 id="paste-title">{text.pasteTitle}</h2>
      <form onSubmit={submit}>
        <label for="paste-text">{text.pasteText}</label>
        <textarea ref={input} id="paste-text" rows={6} autocapitalize="off" autocomplete="off" spellcheck={false} />
        <p>{text.pasteHint}</p>
        <div class="buttons">
          <button type="button" onClick={() => dialog.current!.close()}>
            {text.cancel}
          </button>
          <button ref={button} type="submit" class="primary" aria-disabled={!isConnected}>
            {text.pasteSubmit}
          </button>
        </div>
      </form>
    </dialog>
  );
}

function SearchBar({ terminal, close }: { terminal: GuestTerminal; close(): void }) {
  const text = words.serial;
  const input = useRef<HTMLInputElement>(null);
  const matches = useSignal<{ resultIndex: number; resultCount: number } | null>(null);
  const { search } = terminal;
  async function find(forward: boolean, isTyping = false) {
    const { matchColours } = await import("./terminal");
    const term = input.current?.value ?? "";
    if (!term) matches.value = null;
    const options = { decorations: matchColours(isDark.value) };
    // While the user types, the search begins with the last match, since it is the newest one.
    if (isTyping) terminal.xterm.clearSelection();
    if (forward) search.findNext(term, options);
    else search.findPrevious(term, options);
  }
  // Before the next key, which would otherwise go to the guest.
  useLayoutEffect(() => {
    const listener = search.onDidChangeResults((results) => (matches.value = input.current?.value ? results : null));
    input.current!.focus();
    return () => {
      listener.dispose();
      search.clearDecorations();
    };
  }, []);
  const press = (event: KeyboardEvent) => {
    if (event.key === "Escape") close();
    if (event.key !== "Enter") return;
    event.preventDefault();
    void find(event.shiftKey);
  };
  const found = matches.value;
  return (
    <form class="find" role="search" onSubmit={(event) => event.preventDefault()} onKeyDown={press}>
      <input
        ref={input}
        type="search"
        aria-label={text.search}
        placeholder={text.search}
        autocapitalize="off"
        autocomplete="off"
        spellcheck={false}
        onInput={() => void find(false, true)}
      />
      <p role="status">{found && (found.resultCount === 0 ? text.noMatch : text.matches(found.resultIndex + 1, found.resultCount))}</p>
      <button type="button" aria-label={text.searchPrevious} title={text.searchPrevious} onClick={() => void find(false)}>
        ↑
      </button>
      <button type="button" aria-label={text.searchNext} title={text.searchNext} onClick={() => void find(true)}>
        ↓
      </button>
      <button type="button" aria-label={text.searchClose} title={text.searchClose} onClick={close}>
        ✕
      </button>
    </form>
  );
}

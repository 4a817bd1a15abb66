/** Parts of the lists of VMs and pools. */

import { useSignal } from "@preact/signals";
import { useEffect, useId, useRef } from "preact/hooks";
import { language, LANGUAGES, type Language } from "./settings";
import { previousVm, query, setQuery } from "./state";
import { dictionaries, words, type Confirmation } from "./words";

/** A longer text can exceed the two lines that each row reserves. */
const LONG_TEXT = 90;

interface LongTextProps {
  /** The name in the label of the button for screen readers. */
  of: string;
  isError: boolean;
  reason?: string;
  message?: string;
  /** A text of the server, which is in English. */
  original?: string;
}

/** A text that shows two lines, and the rest on demand. */
export function LongText({ of, isError, reason = "", message = "", original = "" }: LongTextProps) {
  const open = useSignal(false);
  const isLong = reason.length + message.length + original.length > LONG_TEXT;
  return (
    <div class={`note${isError ? " error" : ""}${open.value ? " open" : ""}`}>
      {(reason || message || original) && (
        <p>
          {reason && <b lang="en">{message || original ? `${reason}: ` : reason}</b>}
          {message && original ? `${message} ` : message}
          {original && <span lang="en">{original}</span>}
        </p>
      )}
      {isLong && (
        <button type="button" class="link" aria-expanded={open.value} onClick={() => (open.value = !open.value)}>
          {open.value ? words.list.showLess : words.list.showAll}
          <span class="hidden"> {of}</span>
        </button>
      )}
    </div>
  );
}

/** The title of a list, its search, and the number of its rows. The page begins at the VM of the previous page, or else here. */
export function Toolbar({ title, search, count }: { title: string; search: string; count: string | false | null }) {
  const heading = useRef<HTMLHeadingElement>(null);
  useEffect(() => {
    if (!previousVm || !focusVm(previousVm)) heading.current?.focus();
  }, []);
  return (
    <div class="toolbar">
      <h1 ref={heading} tabIndex={-1}>
        {title}
      </h1>
      <form role="search" onSubmit={(event) => event.preventDefault()}>
        <label for="search" class="hidden">
          {search}
        </label>
        <input
          id="search"
          type="search"
          placeholder={search}
          spellcheck={false}
          value={query.value}
          onInput={(event) => setQuery(event.currentTarget.value)}
        />
      </form>
      <p class="count" role="status">
        {count}
      </p>
    </div>
  );
}

interface ConfirmDialogProps {
  name: string;
  /** Names of several VMs. */
  names?: string[];
  text: Confirmation;
  dialog: { current: HTMLDialogElement | null };
  confirm(): void;
}

/** Asks before an action that can lose data of the guest. */
export function ConfirmDialog({ name, names, text, dialog, confirm }: ConfirmDialogProps) {
  const title = useId();
  const click = () => {
    dialog.current?.close();
    confirm();
  };
  return (
    <dialog ref={dialog} aria-labelledby={title}>
      <h2 id={title}>{text.title(name)}</h2>
      {names && (
        <p class="names" tabIndex={0}>
          {names.join(", ")}
        </p>
      )}
      <p>{text.warning}</p>
      <form method="dialog">
        <button type="submit" autofocus>
          {text.cancel}
        </button>
        <button type="button" class="danger" onClick={click}>
          {text.confirm}
        </button>
      </form>
    </dialog>
  );
}

/** Changes the language of the page at once. */
export function LanguageSelect() {
  const change = (event: { currentTarget: HTMLSelectElement }) => (language.value = event.currentTarget.value as Language);
  return (
    <select aria-label={words.languageLabel} value={language.value} onChange={change}>
      {LANGUAGES.map((code) => (
        <option key={code} value={code} lang={code}>
          {dictionaries[code].languageName}
        </option>
      ))}
    </select>
  );
}

/** Moves the focus to a part of a VM in the list, such as its first action, and scrolls to it. Returns whether the list has it. */
export function focusVm(name: string, part = ".actions :is(a, button)"): boolean {
  const found = document.querySelector<HTMLElement>(`[data-vm="${CSS.escape(name)}"] :is(${part})`);
  found?.focus();
  return found !== null;
}

/** Without the date if it is today. */
export function timeText(time: Date): string {
  const isToday = time.toDateString() === new Date().toDateString();
  return time.toLocaleString(words.language, { ...(!isToday && { dateStyle: "medium" }), timeStyle: "short", hourCycle: "h23" });
}

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

/** A size in the largest unit that it fills. */
export function sizeText(bytes: number): string {
  const unit = bytes < 1 ? 0 : Math.min(Math.floor(Math.log2(bytes) / 10), UNITS.length - 1);
  return `${numberText(bytes / 1024 ** unit)} ${UNITS[unit]}`;
}

export const numberText = (number: number) => number.toLocaleString(words.language, { maximumFractionDigits: 1 });

/** Conditions of a VM that has never run have a time of 1970. */
export const sinceText = (since: string | undefined) => (since && !since.startsWith("1970") ? timeText(new Date(since)) : "");

/** Parts of the rows of both lists: VMs and pools. */

import { useSignal } from "@preact/signals";
import { useId } from "preact/hooks";
import { words, type Confirmation } from "./words";

/** A longer text can exceed the two lines that each row reserves. */
const LONG_TEXT = 90;

interface LongTextProps {
  /** The name in the label of the button for screen readers. */
  of: string;
  isError: boolean;
  reason?: string;
  message: string;
}

/** A text that shows two lines, and the rest on demand. */
export function LongText({ of, isError, reason = "", message }: LongTextProps) {
  const open = useSignal(false);
  const isLong = reason.length + message.length > LONG_TEXT;
  return (
    <div class={`note${isError ? " error" : ""}${open.value ? " open" : ""}`}>
      {(reason || message) && (
        <p>
          {reason && <b>{message ? `${reason}: ` : reason}</b>}
          {message}
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

interface ConfirmDialogProps {
  name: string;
  text: Confirmation;
  dialog: { current: HTMLDialogElement | null };
  confirm(): void;
}

/** Asks before an action that can lose data of the guest. */
export function ConfirmDialog({ name, text, dialog, confirm }: ConfirmDialogProps) {
  const title = useId();
  const click = () => {
    dialog.current?.close();
    confirm();
  };
  return (
    <dialog ref={dialog} aria-labelledby={title}>
      <h2 id={title}>{text.title(name)}</h2>
      <p>{text.warning}</p>
      <form method="dialog">
        <button type="submit">{text.cancel}</button>
        <button type="button" class="danger" onClick={click}>
          {text.confirm}
        </button>
      </form>
    </dialog>
  );
}

/** Moves the focus to the first action of a VM in the list, and scrolls to it. Returns whether the list has one. */
export function focusVm(name: string): boolean {
  const action = document.querySelector<HTMLElement>(`[data-vm="${CSS.escape(name)}"] .actions :is(a, button)`);
  action?.focus();
  return action !== null;
}

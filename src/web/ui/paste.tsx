/** The dialog that types a text into the guest. */

import type RFB from "@novnc/novnc";
import { useSignal, type Signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { charactersOf, LAYOUTS, typeText, unknownCharacters, type Layout } from "./keys";
import { words } from "./words";

type Progress = { is: "ready" } | { is: "unknown"; characters: string[] } | { is: "typing" | "ended"; count: number; all: number };

export function PasteButton({ rfb, layout, onOpen }: { rfb: RFB; layout: Signal<Layout>; onOpen(): void }) {
  const text = words.paste;
  const dialog = useRef<HTMLDialogElement>(null);
  const input = useRef<HTMLTextAreaElement>(null);
  const typing = useRef<AbortController | null>(null);
  const progress = useSignal<Progress>({ is: "ready" });
  const now = progress.value;
  const isTyping = now.is === "typing";

  // The connection has ended.
  useEffect(() => () => typing.current?.abort(), []);

  function open() {
    onOpen();
    progress.value = { is: "ready" };
    dialog.current?.showModal();
  }

  /** The text can be a password, so it does not remain in the page. */
  function close() {
    typing.current?.abort();
    if (input.current) input.current.value = "";
    rfb.focus();
  }

  async function submit(event: SubmitEvent) {
    event.preventDefault();
    const value = input.current?.value ?? "";
    if (isTyping || value === "") return;
    const characters = unknownCharacters(value, layout.value);
    if (characters.length > 0 && now.is !== "unknown") {
      progress.value = { is: "unknown", characters };
      return;
    }
    const all = charactersOf(value).length;
    const controller = new AbortController();
    typing.current = controller;
    let count = 0;
    const report = (typed: number) => (progress.value = { is: "typing", count: (count = typed), all });
    report(0);
    await typeText(rfb, layout.value, value, controller.signal, report);
    if (typing.current !== controller) return;
    if (controller.signal.aborted) progress.value = { is: "ended", count, all };
    else dialog.current?.close();
  }

  const change = () => isTyping || (progress.value = { is: "ready" });
  return (
    <>
      <button type="button" aria-haspopup="dialog" onClick={open}>
        {text.open}…
      </button>
      <dialog class="paste" ref={dialog} aria-labelledby="paste-title" onClose={close}>
        <h2 id="paste-title">{text.title}</h2>
        <form onSubmit={submit}>
          <label for="paste-text">{text.text}</label>
          <textarea
            ref={input}
            id="paste-text"
            rows={5}
            autocapitalize="off"
            autocomplete="off"
            spellcheck={false}
            readOnly={isTyping}
            onInput={change}
          />
          <label for="paste-layout">{text.layout}</label>
          <select
            id="paste-layout"
            value={layout.value}
            disabled={isTyping}
            onChange={(event) => {
              layout.value = event.currentTarget.value as Layout;
              change();
            }}
          >
            {LAYOUTS.map((name) => (
              <option key={name} value={name}>
                {text.layouts[name]}
              </option>
            ))}
          </select>
          <div class="message" aria-live={isTyping ? "off" : "polite"}>
            {now.is === "ready" && <p>{text.hint}</p>}
            {now.is === "unknown" && <p class="error">{text.unknown(now.characters)}</p>}
            {now.is === "typing" && (
              <>
                <p>{text.typing(now.count, now.all)}</p>
                <progress value={now.count} max={now.all} />
              </>
            )}
            {now.is === "ended" && <p>{text.ended(now.count, now.all)}</p>}
          </div>
          <div class="buttons">
            {isTyping ? (
              <button type="button" onClick={() => typing.current?.abort()}>
                {text.stop}
              </button>
            ) : (
              <>
                <button type="button" onClick={() => dialog.current?.close()}>
                  {text.cancel}
                </button>
                <button type="submit" class="primary">
                  {now.is === "unknown" ? text.submitKnown : text.submit}
                </button>
              </>
            )}
          </div>
        </form>
      </dialog>
    </>
  );
}

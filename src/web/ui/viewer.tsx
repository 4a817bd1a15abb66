/** The dialog that saves a file for virt-viewer, and shows its values. */

import { useSignal, type Signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { postViewerFile, type ApiError, type ViewerFile } from "./api";
import { saveFile } from "./download";
import { endLogin, phase } from "./state";
import { errorText, textFor, words } from "./words";

/** `endsAt` is null if the password does not expire. An object per request, so that requests can be compared. */
export type ViewerState = { is: "busy" } | { is: "failed"; error: ApiError } | { is: "ready"; values: ViewerFile; endsAt: number | null };

const TICK_MS = 250;
const COPIED_MS = 2_000;

const fileName = (vm: string) => `${vm}.vv`;

/** Opens the dialog, requests the file and saves it. */
export async function openViewer(vm: string, viewer: Signal<ViewerState | null>) {
  const own: ViewerState = { is: "busy" };
  const login = phase.value;
  viewer.value = own;
  const answer = await postViewerFile(vm);
  if (viewer.value !== own || phase.value !== login) return;
  if (!answer.ok) {
    if (answer.error.status === 401) return endLogin();
    viewer.value = { is: "failed", error: answer.error };
    return;
  }
  const { file, validSeconds } = answer.value;
  saveFile(fileName(vm), new Blob([file], { type: "application/x-virt-viewer" }));
  viewer.value = { is: "ready", values: answer.value, endsAt: validSeconds === undefined ? null : Date.now() + validSeconds * 1000 };
}

/** The password is in the page only as long as the dialog is open and the password is valid. */
export function ViewerDialog({ name, viewer }: { name: string; viewer: Signal<ViewerState | null> }) {
  const text = words.viewer;
  const dialog = useRef<HTMLDialogElement>(null);
  const now = viewer.value!;
  /** The label of the value that the user has just copied. */
  const copied = useSignal("");
  useEffect(() => dialog.current!.showModal(), []);
  const isExpired = now.is === "ready" && now.endsAt !== null && now.values.password === undefined;
  return (
    <dialog ref={dialog} class="viewer" aria-labelledby={`viewer-${name}`} onClose={() => (viewer.value = null)}>
      <h2 id={`viewer-${name}`}>{text.title(name)}</h2>
      <p class="hidden" role="status">
        {isExpired ? text.expired : copied.value && `${copied.value}: ${text.copied}`}
      </p>
      <div class="body">
        <p role="status">{now.is === "busy" ? text.busy : now.is === "ready" && `${text.saved(fileName(name))} ${text.next}`}</p>
        {now.is === "failed" && (
          <p class="error" role="alert">
            {failureText(now.error)}
          </p>
        )}
        {now.is === "ready" && (
          <>
            <dl>
              <Value label={text.host} value={now.values.host} copied={copied} />
              <Value label={text.port} value={String(now.values.port)} copied={copied} />
              {now.values.password !== undefined && <Value label={text.password} value={now.values.password} copied={copied} />}
            </dl>
            {now.endsAt !== null && <Countdown endsAt={now.endsAt} onEnd={() => (viewer.value = withoutPassword(viewer.value))} />}
            <p class="install">{text.install}</p>
          </>
        )}
      </div>
      <form method="dialog">
        {(now.is === "failed" || isExpired) && (
          <button type="button" onClick={() => void openViewer(name, viewer)}>
            {text.again}
          </button>
        )}
        <button type="submit" class="primary">
          {text.close}
        </button>
      </form>
    </dialog>
  );
}

const failureText = (error: ApiError) => textFor(words.viewer.reasons, error.reason)?.(error.user ?? "") ?? errorText(error);

function withoutPassword(state: ViewerState | null): ViewerState | null {
  if (state?.is !== "ready") return state;
  const { password, ...values } = state.values;
  return { ...state, values: { ...values, file: "" } };
}

function Countdown({ endsAt, onEnd }: { endsAt: number; onEnd(): void }) {
  const seconds = useSignal(secondsUntil(endsAt));
  useEffect(() => {
    const timer = setInterval(() => {
      seconds.value = secondsUntil(endsAt);
      if (seconds.value > 0) return;
      clearInterval(timer);
      onEnd();
    }, TICK_MS);
    return () => clearInterval(timer);
  }, [endsAt]);
  return <p>{seconds.value > 0 ? words.viewer.valid(seconds.value) : words.viewer.expired}</p>;
}

const secondsUntil = (time: number) => Math.max(0, Math.ceil((time - Date.now()) / 1000));

function Value({ label, value, copied }: { label: string; value: string; copied: Signal<string> }) {
  const text = words.viewer;
  const isCopied = copied.value === label;
  const timer = useRef<number | undefined>(undefined);
  useEffect(() => () => clearTimeout(timer.current), []);
  async function copy() {
    await navigator.clipboard.writeText(value);
    copied.value = label;
    clearTimeout(timer.current);
    timer.current = setTimeout(() => copied.value === label && (copied.value = ""), COPIED_MS);
  }
  return (
    <>
      <dt>{label}</dt>
      <dd>{value}</dd>
      <dd>
        <button type="button" aria-label={isCopied ? text.copied : text.copyOf(label)} onClick={() => void copy().catch(() => {})}>
          {isCopied ? text.copied : text.copy}
        </button>
      </dd>
    </>
  );
}

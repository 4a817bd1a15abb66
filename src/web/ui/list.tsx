/** The list of VMs. */

import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import type { Action, Row } from "./api";
import { list, phase, previousVm, query, runAction, setQuery, shown, stateOf, vmUrl, type State, type Vm } from "./state";
import { openViewer, ViewerDialog, type ViewerState } from "./viewer";
import { errorText, words } from "./words";

/** One shape per state, since colour alone is not visible to everybody. */
const SHAPES: Record<State, string> = {
  Running: "M8 1.5a6.5 6.5 0 1 0 0 13 6.5 6.5 0 0 0 0-13z",
  Starting: "M8 2l7 12H1z",
  Stopping: "M8 14L1 2h14z",
  Stopped: "M2.5 2.5v11h11v-11zm2 2h7v7h-7z",
  Problem: "M8 0l8 8-8 8-8-8zM7 4v5h2V4zm0 6v2h2v-2z",
};
/** A longer message can exceed the two lines that each row reserves. */
const LONG_MESSAGE = 90;

export function List() {
  const text = words.list;
  const title = useRef<HTMLHeadingElement>(null);
  useEffect(() => {
    const left = previousVm && document.querySelector<HTMLElement>(`[data-vm="${CSS.escape(previousVm)}"] a`);
    (left || title.current)?.focus();
  }, []);
  const all = list.value;
  const hasPages = phase.value.is !== "loggedIn" || phase.value.session.capabilities.length > 0;
  return (
    <main>
      <div class="toolbar">
        <h1 ref={title} tabIndex={-1}>
          {text.title}
        </h1>
        <form role="search" onSubmit={(event) => event.preventDefault()}>
          <label for="search" class="hidden">
            {text.search}
          </label>
          <input
            id="search"
            type="search"
            placeholder={text.search}
            spellcheck={false}
            value={query.value}
            onInput={(event) => setQuery(event.currentTarget.value)}
          />
        </form>
        <p class="count" role="status">
          {all && text.count(shown.value.length, all.length, query.value.trim() !== "")}
        </p>
      </div>
      {shown.value.length > 0 ? (
        <ul class="vms">
          {shown.value.map((vm) => (
            <VmRow key={vm.name} vm={vm} />
          ))}
        </ul>
      ) : (
        <div class="empty">
          <p>{!all ? text.loading : all.length > 0 ? text.noMatch : hasPages ? text.noVms : text.noPages}</p>
          {all?.length === 0 && <p>{hasPages ? text.noVmsNext : text.noPagesNext}</p>}
        </div>
      )}
    </main>
  );
}

function VmRow({ vm }: { vm: Vm }) {
  const row = vm.row.value;
  const state = stateOf(row);
  return (
    <li class="vm" data-vm={row.name} data-requested={row.requested} data-state={state}>
      <h2>{row.name}</h2>
      <div class="status">
        <StateLabel state={state} />
        <Note vm={vm} row={row} state={state} />
      </div>
      <div class="facts">
        {row.system && <p>{row.system}</p>}
        {row.consoleUser && <p>{words.list.consoleUser(row.consoleUser)}</p>}
      </div>
      <div class="actions">
        {mayUseConsole(row) && <ScreenLink row={row} />}
        <ActionButton vm={vm} row={row} />
        {(mayUseConsole(row) || row.may.includes("reset")) && <MoreActions vm={vm} row={row} />}
      </div>
    </li>
  );
}

const mayUseConsole = ({ may }: Row) => may.includes("accessConsole") || may.includes("takeConsole");

export function StateLabel({ state }: { state: State }) {
  return (
    <p class="state">
      <svg viewBox="0 0 16 16" aria-hidden="true">
        <path fill-rule="evenodd" d={SHAPES[state]} />
      </svg>
      {words.states[state]}
    </p>
  );
}

/** The error of the last action, or else the reason and message of the condition `Ready`. */
export function Note({ vm, row, state }: { vm: Vm; row: Row; state: State }) {
  const open = useSignal(false);
  const error = vm.error.value;
  const ready = row.ready;
  const isShown = ready && ready.status !== "True" && (row.requested === "Running" || state === "Problem");
  const reason = error || !isShown ? "" : ready.reason;
  const message = error ? errorText(error) : isShown ? ready.message : "";
  const isLong = reason.length + message.length > LONG_MESSAGE;
  return (
    <div class={`note${error ? " error" : ""}${open.value ? " open" : ""}`}>
      {(reason || message) && (
        <p>
          {reason && <b>{message ? `${reason}: ` : reason}</b>}
          {message}
        </p>
      )}
      {isLong && (
        <button type="button" class="link" aria-expanded={open.value} onClick={() => (open.value = !open.value)}>
          {open.value ? words.list.showLess : words.list.showAll}
          <span class="hidden"> {vm.name}</span>
        </button>
      )}
    </div>
  );
}

/** A link, so that it can be opened in another tab. Without an address it is not a link for browsers, so it has the role. */
function ScreenLink({ row }: { row: Row }) {
  const text = words.screen;
  return (
    <a
      class="button screen"
      aria-label={`${text.label} ${row.name}`}
      {...(row.running ? { href: vmUrl(row.name, "screen") } : { role: "link", tabIndex: 0, "aria-disabled": true, title: words.device.disabled })}
    >
      {text.label}
    </a>
  );
}

/** The actions that are rarely used. Each of them needs a running VM. */
function MoreActions({ vm, row }: { vm: Vm; row: Row }) {
  const menu = useRef<HTMLDivElement>(null);
  const button = useRef<HTMLButtonElement>(null);
  const resetDialog = useRef<HTMLDialogElement>(null);
  const viewer = useSignal<ViewerState | null>(null);
  const isBusy = vm.busy.value !== null;
  const label = `${words.more} ${vm.name}`;
  useEffect(() => {
    if (!row.running) menu.current?.hidePopover();
  }, [row.running]);
  const toggle = () => {
    if (!row.running) return;
    menu.current!.togglePopover();
    placeBelow(menu.current!, button.current!);
  };
  const choose = (run: () => void) => () => {
    menu.current!.hidePopover();
    run();
  };
  return (
    <>
      <button
        ref={button}
        type="button"
        class="more"
        aria-label={label}
        aria-disabled={!row.running}
        title={row.running ? words.more : words.device.disabled}
        onClick={toggle}
      >
        <svg viewBox="0 0 16 16" aria-hidden="true">
          <path d="M1.5 6.5h3v3h-3zm5 0h3v3h-3zm5 0h3v3h-3z" />
        </svg>
      </button>
      <div ref={menu} popover="auto" class="actions-menu" role="group" aria-label={label}>
        {mayUseConsole(row) && (
          <>
            <a class="button" href={vmUrl(row.name, "serial")}>
              {words.serial.label}
            </a>
            <button type="button" aria-haspopup="dialog" onClick={choose(() => void openViewer(vm.name, viewer))}>
              {words.viewer.label}…
            </button>
          </>
        )}
        {row.may.includes("reset") && (
          <button type="button" aria-haspopup="dialog" aria-disabled={isBusy} onClick={choose(() => isBusy || resetDialog.current?.showModal())}>
            {words.actions.reset.label}…
          </button>
        )}
      </div>
      <ResetDialog vm={vm} dialog={resetDialog} />
      {viewer.value && <ViewerDialog name={vm.name} viewer={viewer} />}
    </>
  );
}

/** Above the button if the window has no room below it. */
function placeBelow(menu: HTMLElement, button: HTMLElement) {
  const GAP_PX = 4;
  const { top, bottom, right } = button.getBoundingClientRect();
  const below = bottom + GAP_PX;
  menu.style.left = `${Math.max(GAP_PX, right - menu.offsetWidth)}px`;
  menu.style.top = `${below + menu.offsetHeight <= innerHeight ? below : top - GAP_PX - menu.offsetHeight}px`;
  addEventListener("scroll", () => menu.hidePopover(), { once: true, passive: true });
}

/** A reset loses data of the guest, so it needs a confirmation. */
function ResetDialog({ vm, dialog }: { vm: Vm; dialog: { current: HTMLDialogElement | null } }) {
  const confirm = () => {
    dialog.current?.close();
    void runAction(vm, "reset");
  };
  return (
    <dialog ref={dialog} aria-labelledby={`reset-${vm.name}`}>
      <h2 id={`reset-${vm.name}`}>{words.reset.title(vm.name)}</h2>
      <p>{words.reset.warning}</p>
      <form method="dialog">
        <button type="submit">{words.reset.cancel}</button>
        <button type="button" class="danger" onClick={confirm}>
          {words.reset.confirm}
        </button>
      </form>
    </dialog>
  );
}

export function ActionButton({ vm, row }: { vm: Vm; row: Row }) {
  const busy = vm.busy.value;
  const action: Action = busy?.action ?? (row.requested === "Running" ? "stop" : "start");
  const text = words.actions[action];
  const isPermitted = row.may.includes(action);
  const label = busy ? text.busy : text.label;
  // `aria-disabled` instead of `disabled`: the button retains the focus, and its title can be read by keyboard.
  // The second click of a double click would request the opposite.
  const click = (event: MouseEvent) => isPermitted && !busy && event.detail < 2 && void runAction(vm, action);
  return (
    <button
      type="button"
      class={`action${busy ? " busy" : ""}`}
      aria-label={`${label} ${vm.name}`}
      aria-disabled={!isPermitted || busy !== null}
      aria-busy={busy !== null}
      {...(!isPermitted && !busy && { title: text.notPermitted })}
      onClick={click}
    >
      {label}
    </button>
  );
}

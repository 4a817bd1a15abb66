/** The list of VMs. */

import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import type { Action, Row } from "./api";
import { ConfirmDialog, LongText, Toolbar } from "./parts";
import { Pools } from "./pools";
import { lists, listUrl, ownCount, pools, query, runAction, shown, showNotPermitted, shownPools, stateOf, vmUrl, type State, type Vm } from "./state";
import { openViewer, ViewerDialog, type ViewerState } from "./viewer";
import { errorText, textFor, words } from "./words";

/** One shape per state, since colour alone is not visible to everybody. */
const SHAPES: Record<State, string> = {
  Running: "M8 1.5a6.5 6.5 0 1 0 0 13 6.5 6.5 0 0 0 0-13z",
  Starting: "M8 2l7 12H1z",
  Stopping: "M8 14L1 2h14z",
  Stopped: "M2.5 2.5v11h11v-11zm2 2h7v7h-7z",
  Problem: "M8 0l8 8-8 8-8-8zM7 4v5h2V4zm0 6v2h2v-2z",
};

export function List() {
  const text = words.list;
  const count = ownCount.value;
  return (
    <main>
      <Toolbar
        title={text.title}
        search={text.search}
        count={count !== undefined && text.count(shown.value.length, count, query.value.trim() !== "")}
      />
      {shownPools.value.length > 0 && (
        <>
          <Pools />
          <h2>{text.heading}</h2>
        </>
      )}
      {shown.value.length > 0 ? (
        <ul class="vms">
          {shown.value.map((vm) => (
            <VmRow key={vm.name} vm={vm} Heading={shownPools.value.length > 0 ? "h3" : "h2"} />
          ))}
        </ul>
      ) : (
        <div class="empty">
          {emptyTexts(count).map((text) => (
            <p key={text}>{text}</p>
          ))}
        </div>
      )}
    </main>
  );
}

/** The reason why the list shows no VM, and the next step. `count` is the number of VMs before the search. */
function emptyTexts(count: number | undefined): string[] {
  const text = words.list;
  const hasPools = pools.value.length > 0;
  if (count === undefined) return [text.loading];
  if (hasPools && shownPools.value.length === 0) return [text.noMatchAtAll, text.noMatchNext];
  if (count > 0) return [text.noMatch, text.noMatchNext];
  if (hasPools) return [text.noVmsYet, text.noVmsYetNext];
  return lists.value.length > 0 ? [text.noVms, text.noVmsNext] : [text.noPages, text.noPagesNext];
}

function VmRow({ vm, Heading }: { vm: Vm; Heading: "h2" | "h3" }) {
  const row = vm.row.value;
  const state = stateOf(row);
  return (
    <li class="vm" data-vm={row.name} data-requested={row.requested} data-state={state}>
      <Heading>
        <a href={listUrl("portal", row.name)}>{row.name}</a>
      </Heading>
      <div class="status">
        <StateLabel state={state} />
        <Note vm={vm} row={row} state={state} />
      </div>
      <div class="facts">
        {(row.pool || row.system) && (
          <p>
            {row.pool && <span class="badge">{words.list.pool(row.pool)}</span>} {row.system}
          </p>
        )}
        {row.consoleUser && <p>{words.list.consoleUser(row.consoleUser)}</p>}
      </div>
      <Actions vm={vm} row={row} />
    </li>
  );
}

export function Actions({ vm, row }: { vm: Vm; row: Row }) {
  return (
    <div class="actions">
      {mayUseConsole(row) && <ScreenLink row={row} />}
      <ActionButton vm={vm} row={row} />
      {(mayUseConsole(row) || row.may.includes("reset")) && <MoreActions vm={vm} row={row} />}
    </div>
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
  const error = vm.error.value;
  const ready = row.ready;
  const isShown = ready && ready.status !== "True" && (row.requested === "Running" || state === "Problem");
  if (error || !isShown) return <LongText of={vm.name} isError={error !== null} message={error ? errorText(error) : ""} />;
  return <LongText of={vm.name} isError={false} reason={ready.reason} message={textFor(words.ready, ready.reason) ?? ""} original={ready.message} />;
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
  const isOpen = useSignal(false);
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
        aria-expanded={isOpen.value}
        title={row.running ? words.more : words.device.disabled}
        onClick={toggle}
      >
        <svg viewBox="0 0 16 16" aria-hidden="true">
          <path d="M1.5 6.5h3v3h-3zm5 0h3v3h-3zm5 0h3v3h-3z" />
        </svg>
      </button>
      <div
        ref={menu}
        popover="auto"
        class="actions-menu"
        role="group"
        aria-label={label}
        onToggle={(event) => (isOpen.value = event.newState === "open")}
      >
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
      <ConfirmDialog name={vm.name} text={words.reset} dialog={resetDialog} confirm={() => void runAction(vm, "reset")} />
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

export function ActionButton({ vm, row }: { vm: Vm; row: Row }) {
  const busy = vm.busy.value;
  const action: Action = busy?.action ?? (row.requested === "Running" ? "stop" : "start");
  const text = words.actions[action];
  const isPermitted = row.may.includes(action);
  const label = busy ? text.busy : text.label;
  // `aria-disabled` instead of `disabled`: the button retains the focus, and a click shows the reason.
  const click = (event: MouseEvent) => {
    // The second click of a double click would request the opposite.
    if (busy || event.detail > 1) return;
    if (isPermitted) void runAction(vm, action);
    else showNotPermitted(vm);
  };
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

/** Parts of the pages that show a device of a VM: its screen and its serial line. */

import { useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";
import type { ConnectionState } from "./connection";
import { ActionButton, Note, StateLabel } from "./list";
import { TRIES_BEFORE_BUTTON } from "./live";
import { lastList, list, listUrl, stateOf, vmUrl, type View, type Vm } from "./state";
import { textFor, words, type DeviceText } from "./words";
import "./device.css";

const MODIFIERS = ["Control", "Alt", "AltGraph", "Shift", "Meta"];

interface DeviceHeaderProps {
  name: string;
  vm: Vm | undefined;
  other: View;
  isConnected: boolean;
  toolbar: { current: HTMLDivElement | null };
  children: ComponentChildren;
}

export function DeviceHeader({ name, vm, other, isConnected, toolbar, children }: DeviceHeaderProps) {
  const state = vm && stateOf(vm.row.value);
  return (
    <header {...(state && { "data-state": state })}>
      <a href={lastList.value ? listUrl(lastList.value) : "#/"}>
        <span aria-hidden="true">← </span>
        {words.device.back}
      </a>
      <h1 title={name}>{name}</h1>
      {state && <StateLabel state={state} />}
      {vm && (
        <a href={vmUrl(name, other)} aria-label={words[other].label}>
          {words[other].shortLabel}
        </a>
      )}
      {isConnected && <p class="leave">{words.device.leaveShort}</p>}
      <div class="tools" role="group" aria-label={words.device.toolbar} ref={toolbar} onMouseDown={keepFocus}>
        {children}
      </div>
    </header>
  );
}

/** A click on a button must not take the focus from the guest or from the input of the touch keyboard. */
function keepFocus(event: MouseEvent) {
  if (event.target instanceof HTMLButtonElement) event.preventDefault();
}

/** All other keys go to the guest. The keys count at their release, so that the guest can use them with a further key. */
export function leaveByKeyboard(stage: HTMLElement, leave: () => void) {
  let isPressed = false;
  const press = (event: KeyboardEvent) => {
    isPressed = event.ctrlKey && event.altKey && event.shiftKey && MODIFIERS.includes(event.key);
  };
  const release = () => {
    if (isPressed) leave();
    isPressed = false;
  };
  stage.addEventListener("keydown", press, true);
  stage.addEventListener("keyup", release, true);
  return () => {
    stage.removeEventListener("keydown", press, true);
    stage.removeEventListener("keyup", release, true);
  };
}

interface PanelProps {
  name: string;
  vm: Vm | undefined;
  state: ConnectionState<unknown>;
  text: DeviceText;
  connect(takeOver?: boolean): void;
}

/** The reason why the device is not connected, and the next step. The page has it in a `status`, which screen readers know before its text. */
export function Panel({ name, vm, state, text, connect }: PanelProps) {
  const row = vm?.row.value;
  const again = (
    <button type="button" onClick={() => connect()}>
      {words.device.again}
    </button>
  );
  let content: ComponentChildren = <p>{text.connecting}</p>;
  if (list.value && !row) {
    content = <p>{text.reasons.NotFound()}</p>;
  } else if (vm && row && !row.running) {
    content = (
      <>
        <p>{row.requested === "Stopped" ? words.device.stopped(name) : text.starting(name)}</p>
        <Note vm={vm} row={row} state={stateOf(row)} />
        {(row.requested === "Stopped" || vm.busy.value) && <ActionButton vm={vm} row={row} />}
      </>
    );
  } else if (state.is === "closed") {
    const { reason, user = "", mayTake, isRetried, tries } = state;
    content = (
      <>
        <p>{(textFor(text.reasons, reason) ?? (() => text.reasons.other(reason)))(user)}</p>
        {reason === "InUse" && mayTake !== undefined && <p>{mayTake ? words.screen.takeOverNext(user) : words.screen.mayNotTake}</p>}
        {reason === "InUse" && mayTake ? (
          <button type="button" class="primary" onClick={() => connect(true)}>
            {words.screen.takeOver}
          </button>
        ) : (
          (!isRetried || tries >= TRIES_BEFORE_BUTTON) && again
        )}
      </>
    );
  }
  return <div class="panel">{content}</div>;
}

export function Menu({ label, isActive = false, children }: { label: string; isActive?: boolean; children: ComponentChildren }) {
  const isOpen = useSignal(false);
  const menu = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const close = (event: Event) => {
      if (event.target instanceof Node && !menu.current?.contains(event.target)) isOpen.value = false;
    };
    // In the capture phase, since noVNC stops the events of the canvas.
    addEventListener("pointerdown", close, true);
    addEventListener("focusin", close, true);
    return () => {
      removeEventListener("pointerdown", close, true);
      removeEventListener("focusin", close, true);
    };
  }, []);
  const closeByItem = (event: MouseEvent) => {
    if (event.target instanceof Element && event.target.closest("[data-closes]")) isOpen.value = false;
  };
  const closeByKey = (event: KeyboardEvent) => {
    if (event.key !== "Escape" || !isOpen.value) return;
    isOpen.value = false;
    menu.current?.querySelector("button")?.focus();
  };
  return (
    <div class="menu" ref={menu} onKeyDown={closeByKey}>
      <button type="button" class={isActive ? "active" : ""} aria-expanded={isOpen.value} onClick={() => (isOpen.value = !isOpen.value)}>
        {label} <span aria-hidden="true">▾</span>
      </button>
      {isOpen.value && (
        <div class="items" onClick={closeByItem}>
          {children}
        </div>
      )}
    </div>
  );
}

/** In full screen, browsers with the Keyboard Lock API pass Esc and the keys of the window manager to the page. */
export function FullScreenButton({ page }: { page: { current: HTMLElement | null } }) {
  const isFull = useSignal(document.fullscreenElement !== null);
  useEffect(() => {
    const change = () => (isFull.value = document.fullscreenElement !== null);
    document.addEventListener("fullscreenchange", change);
    return () => document.removeEventListener("fullscreenchange", change);
  }, []);
  const toggle = async () => {
    if (isFull.value) return document.exitFullscreen();
    const { keyboard } = navigator as { keyboard?: { lock(): Promise<void> } };
    await page.current?.requestFullscreen();
    await keyboard?.lock();
  };
  return (
    <button type="button" data-closes onClick={() => void toggle().catch(() => {})}>
      {isFull.value ? words.device.endFullScreen : words.device.fullScreen}
    </button>
  );
}

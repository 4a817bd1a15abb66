/** The screen of a VM. */

import type RFB from "@novnc/novnc";
import { useSignal, useSignalEffect } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { DeviceHeader, FullScreenButton, leaveByKeyboard, Menu, Panel } from "./device";
import { saveFile, timeForName } from "./download";
import {
  ALT,
  BACKSPACE,
  CONTROL,
  createTypist,
  DELETE,
  ESCAPE,
  FUNCTION_KEYS,
  LAYOUTS,
  pressKeys,
  SHIFT,
  SUPER,
  TAB,
  type Key,
  type Layout,
} from "./keys";
import { LanguageSelect } from "./parts";
import { PasteButton } from "./paste";
import { storedSignal } from "./settings";
import { list } from "./state";
import { openScreen, type ScreenConnection } from "./vnc";
import { words } from "./words";

const scale = storedSignal("screenScale", ["fit", "actualSize"], "fit");
const resizesGuest = storedSignal("screenResizesGuest", ["no", "yes"], "no");
export const layout = storedSignal<Layout>("guestLayout", LAYOUTS, navigator.language.startsWith("de") ? "de" : "us");

const HELD_KEYS: [name: string, key: Key][] = [
  ["Ctrl", CONTROL],
  ["Alt", ALT],
  ["Shift", SHIFT],
  ["Super", SUPER],
];
const OTHER_KEYS: [name: string, key: Key][] = [
  ["Esc", ESCAPE],
  ["Tab", TAB],
];
const isTouch = matchMedia("(pointer: coarse)").matches;

export function ScreenPage({ name }: { name: string }) {
  const page = useRef<HTMLElement>(null);
  const toolbar = useRef<HTMLDivElement>(null);
  const stage = useRef<HTMLDivElement>(null);
  const screen = useSignal<ScreenConnection | null>(null);
  const vm = list.value?.find((vm) => vm.name === name);
  const row = vm?.row.value;
  const isRunning = row?.running === true;
  const state = screen.value?.state.value ?? { is: "connecting" };
  const rfb = state.is === "connected" ? state.client : null;
  const focusToolbar = () => toolbar.current?.querySelector<HTMLElement>("button")?.focus();

  useEffect(() => {
    screen.value = openScreen(name, stage.current!);
    return () => screen.value?.dispose();
  }, []);
  useEffect(() => (isRunning ? screen.value?.connect() : screen.value?.disconnect()), [isRunning]);
  const label = words.screen.canvas(name);
  useEffect(() => {
    if (rfb) prepareCanvas(stage.current!, label);
  }, [rfb, label]);
  useEffect(() => {
    if (!rfb) return;
    rfb.background = "none";
    // A dialog or the toolbar may have the focus.
    if (document.activeElement === document.body) rfb.focus();
  }, [rfb]);
  useEffect(() => leaveByKeyboard(stage.current!, focusToolbar), []);
  useEffect(() => {
    // noVNC releases the pressed keys if the window loses the focus, but not if another element gets it.
    const releaseKeys = () => dispatchEvent(new Event("blur"));
    stage.current!.addEventListener("focusout", releaseKeys);
  }, []);

  return (
    <main class="device" ref={page}>
      <DeviceHeader name={name} vm={vm} other="serial" isConnected={rfb !== null} toolbar={toolbar}>
        {rfb && <Tools name={name} rfb={rfb} page={page} />}
      </DeviceHeader>
      <div class="stage">
        <div class="picture" ref={stage} />
        {screen.value?.lastPicture.value && <LastPicture picture={screen.value.lastPicture.value} />}
        <div role="status">
          {!rfb && <Panel name={name} vm={vm} state={state} text={words.screen} connect={(takeOver) => screen.value?.connect(takeOver)} />}
        </div>
      </div>
    </main>
  );
}

/** noVNC creates the canvas without a name, and without a place in the order of the Tab key. */
function prepareCanvas(stage: HTMLElement, label: string) {
  const canvas = stage.querySelector("canvas");
  canvas?.setAttribute("role", "application");
  canvas?.setAttribute("aria-label", label);
  canvas?.setAttribute("tabindex", "0");
}

function LastPicture({ picture }: { picture: HTMLCanvasElement }) {
  const place = useRef<HTMLDivElement>(null);
  const time = useRef(new Date());
  useEffect(() => place.current?.replaceChildren(picture), [picture]);
  return (
    <div class="last">
      <div ref={place} />
      <p>{words.screen.lastPicture(time.current.toLocaleTimeString(words.language, { timeStyle: "medium", hourCycle: "h23" }))}</p>
    </div>
  );
}

function Tools({ name, rfb, page }: { name: string; rfb: RFB; page: { current: HTMLElement | null } }) {
  const text = words.screen;
  const held = useSignal<ReadonlySet<Key>>(new Set());
  const isClipping = useSignal(false);
  const moves = useSignal(false);
  const touchInput = useRef<HTMLTextAreaElement>(null);

  useSignalEffect(() => {
    rfb.scaleViewport = scale.value === "fit";
    // Touch gestures go to the guest, so the picture cannot be scrolled by them.
    rfb.clipViewport = scale.value !== "fit" && isTouch;
    rfb.resizeSession = resizesGuest.value === "yes";
  });
  useEffect(() => {
    isClipping.value = rfb.clippingViewport;
    rfb.addEventListener("clippingviewport", () => {
      isClipping.value = rfb.clippingViewport;
      if (!rfb.clippingViewport) rfb.dragViewport = moves.value = false;
    });
  }, [rfb]);

  function hold(key: Key, isDown: boolean) {
    if (held.value.has(key) === isDown) return;
    rfb.sendKey(key.keysym, key.code, isDown);
    const keys = new Set(held.value);
    if (isDown) keys.add(key);
    else keys.delete(key);
    held.value = keys;
  }
  const releaseHeld = () => HELD_KEYS.forEach(([, key]) => hold(key, false));
  /** The guest's keyboard is wanted after a click, but not after the Enter key on a button. */
  const focusGuest = (event: MouseEvent) => event.detail > 0 && document.activeElement !== touchInput.current && rfb.focus();
  const press = (event: MouseEvent, ...keys: Key[]) => {
    pressKeys(rfb, keys);
    focusGuest(event);
  };
  const combine = (event: MouseEvent, ...keys: Key[]) => {
    releaseHeld();
    press(event, ...keys);
  };
  const toggleHeld = (event: MouseEvent, key: Key) => {
    hold(key, !held.value.has(key));
    focusGuest(event);
  };
  const heldNames = HELD_KEYS.filter(([, key]) => held.value.has(key)).map(([keyName]) => words.keyName(keyName));

  return (
    <>
      <button type="button" onClick={(event) => combine(event, CONTROL, ALT, DELETE)}>
        {text.ctrlAltDel}
      </button>
      <Menu label={heldNames.length > 0 ? heldNames.join("+") : text.keys} isActive={heldNames.length > 0}>
        <fieldset>
          <legend>{text.heldKeys}</legend>
          {HELD_KEYS.map(([keyName, key]) => (
            <button type="button" key={keyName} aria-pressed={held.value.has(key)} onClick={(event) => toggleHeld(event, key)}>
              {words.keyName(keyName)}
            </button>
          ))}
        </fieldset>
        <fieldset>
          <legend>{text.otherKeys}</legend>
          {OTHER_KEYS.map(([keyName, key]) => (
            <button type="button" key={keyName} aria-label={text.key(keyName)} onClick={(event) => press(event, key)}>
              {keyName}
            </button>
          ))}
        </fieldset>
        <fieldset>
          <legend>{text.functionKeys}</legend>
          {FUNCTION_KEYS.map((key) => (
            <button
              type="button"
              key={key.code}
              data-closes
              aria-label={`${text.functionKeys}${key.code}`}
              onClick={(event) => combine(event, CONTROL, ALT, key)}
            >
              {key.code}
            </button>
          ))}
        </fieldset>
        <p>{words.device.leave}</p>
      </Menu>
      <PasteButton rfb={rfb} layout={layout} onOpen={releaseHeld} />
      <Menu label={text.view}>
        <ViewOptions />
        {document.fullscreenEnabled && <FullScreenButton page={page} />}
        <button type="button" data-closes onClick={() => savePicture(rfb, name)}>
          {text.screenshot}
        </button>
        <LanguageSelect />
      </Menu>
      {isClipping.value && (
        <button type="button" aria-pressed={moves.value} onClick={() => (rfb.dragViewport = moves.value = !moves.value)}>
          {text.move}
        </button>
      )}
      <TouchKeyboard rfb={rfb} input={touchInput} />
    </>
  );
}

function ViewOptions() {
  const text = words.screen;
  return (
    <>
      {(["fit", "actualSize"] as const).map((value) => (
        <label key={value}>
          <input type="radio" name="scale" checked={scale.value === value} onChange={() => (scale.value = value)} />
          {text[value]}
        </label>
      ))}
      <label>
        <input
          type="checkbox"
          checked={resizesGuest.value === "yes"}
          onChange={(event) => (resizesGuest.value = event.currentTarget.checked ? "yes" : "no")}
        />
        {text.resizeGuest}
      </label>
    </>
  );
}

function savePicture(rfb: RFB, name: string) {
  rfb.toBlob((blob) => blob && saveFile(`${name}-${timeForName()}.png`, blob), "image/png");
}

/** The input is never empty, so that the Backspace key of a touch keyboard changes it. */
const TOUCH_FILLER = "_".repeat(100);
const TOUCH_INPUT_MAX = 1000;

/** Touch keyboards report changes of a text and no keys, so the guest gets the difference of two texts. */
function TouchKeyboard({ rfb, input }: { rfb: RFB; input: { current: HTMLTextAreaElement | null } }) {
  const previous = useRef(TOUCH_FILLER);
  const isOpen = useSignal(false);
  const reset = () => {
    if (!input.current) return;
    previous.current = input.current.value = TOUCH_FILLER;
    input.current.setSelectionRange(TOUCH_FILLER.length, TOUCH_FILLER.length);
  };
  const type = () => {
    const [before, after] = [[...previous.current], [...input.current!.value]];
    let same = 0;
    while (same < before.length && before[same] === after[same]) same += 1;
    for (let i = same; i < before.length; i++) pressKeys(rfb, [BACKSPACE]);
    after.slice(same).forEach(createTypist(rfb, layout.peek(), "send"));
    previous.current = input.current!.value;
    // Not more often, since a change of the text ends the suggestions of the touch keyboard.
    if (after.length === 0 || after.length > TOUCH_INPUT_MAX) reset();
  };
  const setOpen = (open: boolean) => {
    isOpen.value = open;
    // A touch on the screen would otherwise close the touch keyboard.
    rfb.focusOnClick = !open;
    if (open) reset();
  };
  return (
    <>
      <button
        type="button"
        class="touch"
        aria-label={words.screen.keyboard}
        aria-pressed={isOpen.value}
        onClick={() => (isOpen.value ? input.current?.blur() : input.current?.focus())}
      >
        <svg viewBox="0 0 24 16" aria-hidden="true">
          <path fill-rule="evenodd" d="M1 1h22v14H1zm2 2v10h18V3zm2 2h2v2H5zm4 0h2v2H9zm4 0h2v2h-2zm4 0h2v2h-2zM6 9h12v2H6z" />
        </svg>
      </button>
      <textarea
        ref={input}
        class="touch-input"
        aria-label={words.screen.keyboard}
        tabIndex={-1}
        autocapitalize="off"
        autocomplete="off"
        spellcheck={false}
        onFocus={() => setOpen(true)}
        onBlur={() => setOpen(false)}
        onInput={type}
      />
    </>
  );
}

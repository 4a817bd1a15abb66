/** The state of the page, and the functions that change it. */

import { batch, computed, signal, type Signal } from "@preact/signals";
import * as api from "./api";
import type { Action, ApiError, Requested, Row, Session } from "./api";
import { errorText, words } from "./words";

export type Phase =
  | { is: "start" }
  | { is: "startFailed"; error: ApiError }
  | { is: "login"; ended: boolean }
  | { is: "loggedIn"; session: Session };

export type State = "Running" | "Starting" | "Stopping" | "Stopped" | "Problem";

/** A VM of the list. Each VM has its own signals, so that a change renders one row. */
export interface Vm {
  name: string;
  row: Signal<Row>;
  /** The action that the list does not show yet. An object per request, so that requests can be compared. */
  busy: Signal<{ action: Action } | null>;
  error: Signal<ApiError | null>;
}

/** A VM's `requested` normally changes within a second of the server's answer. */
const CHANGE_TIMEOUT_MS = 30_000;
/** Reasons of the condition `Ready` that report progress. Each other reason reports a problem. */
const PROGRESS = ["", "Creation", "Starting", "Running", "Stopping", "Stopped"];
/** A reset does not change the list. */
const REQUESTED: Record<Action, Requested | null> = { start: "Running", stop: "Stopped", reset: null };

export const phase = signal<Phase>({ is: "start" });
export const loggedIn = computed(() => phase.value.is === "loggedIn");
/** Sorted by name; null until the server has sent the list. */
export const list = signal<readonly Vm[] | null>(null);
export const query = signal(readQuery());
export const shown = computed(() => {
  const text = query.value.trim().toLowerCase();
  return (list.value ?? []).filter((vm) => vm.name.toLowerCase().includes(text));
});
export const logoutState = signal<{ busy: boolean; error: ApiError | null }>({ busy: false, error: null });
/** Read aloud by screen readers, otherwise invisible. */
export const announcement = signal("");

const vms = new Map<string, Vm>();

export function stateOf({ requested, running, ready }: Row): State {
  const blocked = ready !== undefined && ready.status !== "True" && !PROGRESS.includes(ready.reason);
  if (requested === "Stopped") return !running ? "Stopped" : blocked ? "Problem" : "Stopping";
  if (blocked) return "Problem";
  return running && (ready?.status ?? "True") === "True" ? "Running" : "Starting";
}

// ---- the list

export function replaceRows(rows: Row[]) {
  const names = new Set(rows.map((row) => row.name));
  changeRows(rows, [...vms.keys()].filter((name) => !names.has(name)));
}

export function changeRows(rows: Row[], gone: string[]) {
  batch(() => {
    let changed = list.value === null;
    for (const name of gone) changed = vms.delete(name) || changed;
    for (const row of rows) {
      const vm = vms.get(row.name);
      if (vm) {
        updateVm(vm, row);
      } else {
        vms.set(row.name, { name: row.name, row: signal(row), busy: signal(null), error: signal(null) });
        changed = true;
      }
    }
    if (changed) list.value = [...vms.values()].sort((a, b) => (a.name < b.name ? -1 : 1));
  });
}

function updateVm(vm: Vm, row: Row) {
  const previous = vm.row.peek();
  if (JSON.stringify(previous) === JSON.stringify(row)) return;
  if (previous.requested !== row.requested) vm.busy.value = null;
  vm.error.value = null;
  vm.row.value = row;
}

export function clearRows() {
  vms.clear();
  list.value = null;
  announcement.value = "";
}

export async function runAction(vm: Vm, action: Action) {
  if (vm.busy.value) return;
  const mine = { action };
  const login = phase.value;
  vm.error.value = null;
  vm.busy.value = mine;
  announcement.value = "";
  const fail = (error: ApiError) => {
    if (vm.busy.value === mine) vm.busy.value = null;
    if (vm.row.value.requested === REQUESTED[action] || phase.value !== login) return;
    vm.error.value = error;
    announcement.value = `${vm.name}: ${errorText(error)}`;
  };
  const answer = await api.postAction(vm.name, action);
  if (answer.ok) {
    if (phase.value === login) announcement.value = words.actions[action].sent(vm.name);
    if (REQUESTED[action] === null && vm.busy.value === mine) vm.busy.value = null;
    setTimeout(() => vm.busy.value === mine && fail({ status: 0, reason: "NotVisible" }), CHANGE_TIMEOUT_MS);
  } else if (answer.error.status === 401) {
    if (phase.value === login) endLogin();
  } else {
    fail(answer.error);
  }
}

// ---- the session

/** Reads the session at the start, and after another login in the same browser. */
export async function loadSession() {
  const answer = await api.getSession();
  if (answer.ok) phase.value = { is: "loggedIn", session: answer.value };
  else if (answer.error.status === 401) showLogin(phase.value.is === "loggedIn");
  else phase.value = { is: "startFailed", error: answer.error };
}

export async function login(user: string, password: string): Promise<ApiError | null> {
  const answer = await api.postLogin(user, password);
  if (!answer.ok) return answer.error;
  phase.value = { is: "loggedIn", session: answer.value };
  return null;
}

export async function logout() {
  if (logoutState.value.busy) return;
  logoutState.value = { busy: true, error: null };
  const answer = await api.postLogout();
  if (answer.ok || answer.error.status === 401) showLogin(false);
  else logoutState.value = { busy: false, error: answer.error };
}

/** The server has ended the login. */
export const endLogin = () => showLogin(true);

function showLogin(ended: boolean) {
  batch(() => {
    clearRows();
    logoutState.value = { busy: false, error: null };
    phase.value = { is: "login", ended };
  });
}

// ---- the search, in the URL

function readQuery(): string {
  return new URLSearchParams(location.search).get("q") ?? "";
}

export function setQuery(text: string) {
  query.value = text;
  const url = new URL(location.href);
  if (text) url.searchParams.set("q", text);
  else url.searchParams.delete("q");
  history.replaceState(null, "", url);
}

addEventListener("popstate", () => (query.value = readQuery()));

/** The reason why a login by a provider has failed, which the server adds to the URL. */
export function takeLoginError(): ApiError | null {
  const url = new URL(location.href);
  const reason = url.searchParams.get("login");
  url.searchParams.delete("login");
  if (reason) history.replaceState(null, "", url);
  return reason ? { status: 0, reason } : null;
}

// ---- the page, in the URL

export const VIEWS = ["screen", "serial"] as const;
export type View = (typeof VIEWS)[number];

/** The page of a VM; null is the list. */
export const place = signal(readPlace());
/** The VM of the page before the list. */
export let previousVm: string | null = null;

export const LIST_URL = "#/";
export const vmUrl = (name: string, view: View) => `#/vms/${encodeURIComponent(name)}/${view}`;

function readPlace(): { vm: string; view: View } | null {
  const [, name, last] = /^#\/vms\/([^/]+)\/([^/]+)$/.exec(location.hash) ?? [];
  const view = VIEWS.find((view) => view === last);
  try {
    return name && view ? { vm: decodeURIComponent(name), view } : null;
  } catch {
    return null;
  }
}

addEventListener("hashchange", () => {
  previousVm = place.value?.vm ?? null;
  place.value = readPlace();
});

// ---- settings of the browser

/** A signal with a value of `values` that the browser stores. */
export function storedSignal<T extends string>(key: string, values: readonly T[], initial: T): Signal<T> {
  const stored = localStorage.getItem(key);
  const setting = signal(values.find((value) => value === stored) ?? initial);
  setting.subscribe((value) => localStorage.setItem(key, value));
  return setting;
}

export const THEMES = ["system", "light", "dark"] as const;
export type Theme = (typeof THEMES)[number];

export const theme = storedSignal<Theme>("theme", THEMES, "system");

const systemIsDark = signal(false);
const darkScheme = matchMedia("(prefers-color-scheme: dark)");
const readScheme = () => (systemIsDark.value = darkScheme.matches);
darkScheme.addEventListener("change", readScheme);
readScheme();
export const isDark = computed(() => (theme.value === "system" ? systemIsDark.value : theme.value === "dark"));

/** The state of the page, and the functions that change it. */

import { batch, computed, signal, type Signal } from "@preact/signals";
import * as api from "./api";
import type { Action, Answer, ApiError, Assignment, PoolRow, Requested, Row, Session } from "./api";
import { errorText, poolErrorText, words } from "./words";

export type Phase =
  | { is: "start" }
  | { is: "startFailed"; error: ApiError }
  | { is: "login"; ended: boolean }
  | { is: "loggedIn"; session: Session };

export type State = "Running" | "Starting" | "Stopping" | "Stopped" | "Problem";

export type PoolAction = "get" | "leave" | "giveBack";

/** An entry of a list. Each entry has its own signals, so that a change renders one row. */
interface Entry<Row, Action> {
  name: string;
  row: Signal<Row>;
  /** The action that the list does not show yet. An object per request, so that requests can be compared. */
  busy: Signal<{ action: Action } | null>;
  error: Signal<ApiError | null>;
}

export type Vm = Entry<Row, Action>;
export type Pool = Entry<PoolRow, PoolAction>;

/** The list normally shows a change within a second of the server's answer. */
const CHANGE_TIMEOUT_MS = 30_000;
/** Reasons of the condition `Ready` that report progress. Each other reason reports a problem. */
const PROGRESS = ["", "Creation", "Starting", "Running", "Stopping", "Stopped"];
/** A reset does not change the list. */
const REQUESTED: Record<Action, Requested | null> = { start: "Running", stop: "Stopped", reset: null };

export const phase = signal<Phase>({ is: "start" });
export const loggedIn = computed(() => phase.value.is === "loggedIn");
/** Sorted by name; null until the server has sent the list. */
export const list = signal<readonly Vm[] | null>(null);
/** The VMs on which the user has a right. */
const own = computed(() => list.value?.filter((vm) => vm.row.value.may.length > 0) ?? null);
/** Sorted by name. */
export const pools = signal<readonly Pool[]>([]);
export const query = signal(readParameter("q"));
/** The VM of a pool is also found by the name of the pool. */
export const shown = computed(() => (own.value ?? []).filter((vm) => matchesQuery(vm.name) || matchesQuery(vm.row.value.pool ?? "")));
export const ownCount = computed(() => own.value?.length);
export const shownPools = computed(() => pools.value.filter((pool) => matchesQuery(pool.name)));
const matchesQuery = (name: string) => name.toLowerCase().includes(query.value.trim().toLowerCase());
export const logoutState = signal<{ busy: boolean; error: ApiError | null }>({ busy: false, error: null });
/** Read aloud by screen readers, otherwise invisible. */
export const announcement = signal("");

const vms = new Map<string, Vm>();

const newEntry = <Row extends { name: string }, Action>(row: Row): Entry<Row, Action> => ({
  name: row.name,
  row: signal(row),
  busy: signal(null),
  error: signal(null),
});
const byName = (a: { name: string }, b: { name: string }) => (a.name < b.name ? -1 : 1);

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
      if (vm && vm.row.peek().uid === row.uid) {
        updateVm(vm, row);
      } else {
        vms.set(row.name, newEntry(row));
        changed = true;
      }
    }
    if (changed) list.value = [...vms.values()].sort(byName);
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
  pools.value = [];
  announcement.value = "";
}

export function runAction(vm: Vm, action: Action) {
  return run(vm, action, {
    send: () => api.postAction(vm.row.value, action),
    isShown: () => vm.row.value.requested === REQUESTED[action],
    changesList: REQUESTED[action] !== null,
    sent: words.actions[action].sent(vm.name),
    errorText,
  });
}

const announce = ({ name }: { name: string }, text: string) => (announcement.value = `${name}: ${text}`);

/** The reason why an action is not possible, as if the server had rejected it. */
export function showNotPermitted(vm: Vm) {
  vm.error.value = { status: 0, reason: "NotPermitted" };
  announce(vm, errorText(vm.error.value));
}

interface Request {
  send(): Promise<Answer<void>>;
  /** Whether the list shows the result. */
  isShown(): boolean;
  changesList: boolean;
  sent: string;
  errorText(error: ApiError): string;
}

async function run<Action>(entry: Entry<unknown, Action>, action: Action, { send, isShown, changesList, sent, errorText }: Request) {
  if (entry.busy.value) return;
  const mine = { action };
  const login = phase.value;
  entry.error.value = null;
  entry.busy.value = mine;
  announcement.value = "";
  const fail = (error: ApiError) => {
    if (entry.busy.value === mine) entry.busy.value = null;
    if (isShown() || phase.value !== login) return;
    entry.error.value = error;
    announce(entry, errorText(error));
  };
  const answer = await send();
  if (answer.ok) {
    // The list may have been faster than the answer, and has announced more.
    if (phase.value === login && !announcement.value) announcement.value = sent;
    if (!changesList && entry.busy.value === mine) entry.busy.value = null;
    setTimeout(() => entry.busy.value === mine && fail({ status: 0, reason: "NotVisible" }), CHANGE_TIMEOUT_MS);
  } else if (answer.error.status === 401) {
    if (phase.value === login) endLogin();
  } else {
    fail(answer.error);
  }
}

// ---- pools

export function replacePools(rows: PoolRow[]) {
  const known = new Map(pools.value.map((pool) => [pool.name, pool]));
  batch(() => {
    pools.value = rows.map((row) => updatePool(known.get(row.name), row)).sort(byName);
  });
}

function updatePool(pool: Pool | undefined, row: PoolRow): Pool {
  if (!pool) return newEntry(row);
  const { assignment: previous, queue } = pool.row.peek();
  const next = row.assignment;
  pool.row.value = row;
  const hasMoved = queue?.place !== row.queue?.place;
  // The other fields change with the requests of other users.
  if (!hasMoved && JSON.stringify(previous) === JSON.stringify(next)) return pool;
  const isRequested = pool.busy.value !== null;
  if (hasClaim(previous) !== hasClaim(next)) {
    pool.busy.value = null;
    pool.error.value = hasClaim(next) || isRequested ? null : { status: 0, reason: "AssignmentEnded" };
  } else if (hasClaim(next)) {
    pool.error.value = null;
  }
  const error = pool.error.value;
  if (error) announce(pool, poolErrorText(error));
  else if (!next) announce(pool, words.pools.ended);
  else if (hasMoved || previous?.state !== next.state || previous.vm !== next.vm) announce(pool, assignmentText(row, next));
  return pool;
}

/** With the place in the queue as soon as the operator has found no VM: before, the user normally waits for less than a second. */
export const assignmentText = ({ queue }: PoolRow, assignment: Assignment) =>
  queue && assignment.state === "Waiting" ? words.pools.place(queue.place, queue.of) : words.pools.assignment(assignment);

/** Whether the user has a VM or waits for one. */
export const hasClaim = (assignment: Assignment | undefined) => assignment !== undefined && assignment.state !== "Ending";

export function runPoolAction(pool: Pool, action: PoolAction) {
  return run(pool, action, {
    send: () => (action === "get" ? api.postAssignment(pool.name) : api.deleteAssignment(pool.name)),
    isShown: () => hasClaim(pool.row.value.assignment) === (action === "get"),
    changesList: true,
    sent: words.pools.actions[action].sent(pool.name),
    errorText: poolErrorText,
  });
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

// ---- the search and the order, in the URL

function readParameter(name: string): string {
  return new URLSearchParams(location.search).get(name) ?? "";
}

function writeParameter(name: string, value: string) {
  const url = new URL(location.href);
  if (value) url.searchParams.set(name, value);
  else url.searchParams.delete(name);
  history.replaceState(null, "", url);
}

export function setQuery(text: string) {
  query.value = text;
  writeParameter("q", text);
}

/** A column of the overview, with "-" before it if the highest value is the first. */
export const order = signal(readParameter("sort"));

export function setOrder(value: string) {
  order.value = value;
  writeParameter("sort", value);
}

addEventListener("popstate", () => {
  query.value = readParameter("q");
  order.value = readParameter("sort");
});

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
export const LISTS = ["portal", "overview"] as const;
export type ListName = (typeof LISTS)[number];

/** A list, with the VM beside it, or a device of a VM. */
type Place = { list: ListName; vm: string | null } | { view: View; vm: string };

export const listUrl = (list: ListName, vm?: string) => `#/${list}${vm === undefined ? "" : `/${encodeURIComponent(vm)}`}`;
export const vmUrl = (name: string, view: View) => `#/vms/${encodeURIComponent(name)}/${view}`;

const hash = signal(location.hash);

/** The lists that the roles permit. */
export const lists = computed(() => {
  const session = phase.value.is === "loggedIn" ? phase.value.session : null;
  return LISTS.filter((list) => session?.capabilities.includes(list));
});

export const place = computed((): Place => {
  const [first = "", second = "", third = ""] = hash.value.split("/").slice(1).map(decoded);
  const view = VIEWS.find((view) => view === third);
  if (first === "vms" && second && view) return { view, vm: second };
  const named = lists.value.find((list) => list === first);
  return { list: named ?? startList(), vm: (named && second) || null };
});

const startList = (): ListName => (phase.value.is === "loggedIn" ? phase.value.session.start : "portal");

function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return "";
  }
}

/** The list of the last place. */
export const lastList = signal<ListName | null>(null);
/** The VM of the previous place. */
export let previousVm: string | null = null;

addEventListener("hashchange", () => {
  const previous = place.value;
  previousVm = previous.vm;
  if ("list" in previous) lastList.value = previous.list;
  hash.value = location.hash;
});

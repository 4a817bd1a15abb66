/** The state of the overview: columns, filter, order, selection and totals. */

import { computed, effect, signal } from "@preact/signals";
import { getHistory, type Action, type ApiError, type Row, type Sample } from "./api";
import { storedSignal } from "./settings";
import { list, order, phase, place, query, runAction, setOrder, stateOf, type Vm } from "./state";
import { words } from "./words";

export const COLUMNS = ["name", "state", "since", "cpus", "ram", "node", "user", "assignedTo"] as const;
export type Column = (typeof COLUMNS)[number];

/** The value by which a column orders its rows. */
const VALUES: Record<Column, (row: Row) => string | number> = {
  name: (row) => row.name,
  state: (row) => words.states[stateOf(row)],
  since: (row) => row.facts?.since ?? "",
  cpus: (row) => row.facts?.cpus ?? 0,
  ram: (row) => row.facts?.ram ?? 0,
  node: (row) => row.facts?.node ?? "",
  user: (row) => row.consoleUser ?? "",
  assignedTo: (row) => row.facts?.assignedTo ?? "",
};

// ---- filter and order

const SEARCHED: readonly Column[] = ["name", "state", "node", "user", "assignedTo"];

/** Each word of the filter is in one of the columns, or in the reason of the state. The English state is for bookmarks. */
function matches(row: Row, searched: string[]): boolean {
  const texts = [...SEARCHED.map((column) => String(VALUES[column](row))), stateOf(row), row.ready?.reason ?? "", row.system ?? ""];
  const text = texts.join("\n").toLowerCase();
  return searched.every((word) => text.includes(word));
}

export const sorted = computed(() => {
  const isDescending = order.value.startsWith("-");
  const name = order.value.slice(isDescending ? 1 : 0);
  return { column: COLUMNS.find((column) => column === name) ?? "name", isDescending };
});

/** Orders by the column, and in the other direction if the table is ordered by it. */
export function orderBy(column: Column) {
  const isDescending = sorted.value.column === column && !sorted.value.isDescending;
  setOrder(`${isDescending ? "-" : ""}${column}`);
}

/** The VMs that match the filter, in the order of the table. */
export const filtered = computed(() => {
  const searched = query.value.toLowerCase().split(/\s+/).filter(Boolean);
  const found = (list.value ?? []).filter((vm) => matches(vm.row.value, searched));
  const { column, isDescending } = sorted.value;
  const keyed = found.map((vm) => ({ vm, key: VALUES[column](vm.row.value) }));
  const sign = isDescending ? -1 : 1;
  // The sort is stable, and the list is in the order of the names.
  keyed.sort((a, b) => (a.key < b.key ? -sign : a.key > b.key ? sign : 0));
  return keyed.map(({ vm }) => vm);
});

// ---- selection

/** Objects instead of names: a new VM with the same name is not selected. */
const chosen = signal<ReadonlySet<Vm>>(new Set());
/** The selected VMs that match the filter: actions do not change a VM that nobody sees. */
export const selection = computed(() => filtered.value.filter((vm) => chosen.value.has(vm)));
export const isSelected = (vm: Vm) => chosen.value.has(vm);

export function select(vms: readonly Vm[], isChosen: boolean) {
  const next = new Set(chosen.value);
  for (const vm of vms) isChosen ? next.add(vm) : next.delete(vm);
  chosen.value = next;
}

/** The selected VMs for which the action is possible. */
export const candidates = (action: "start" | "stop") =>
  selection.value.filter(({ row, busy }) => {
    const { requested, may } = row.value;
    return may.includes(action) && busy.value === null && (requested === "Running") === (action === "stop");
  });

const REQUESTS_MAX = 6;
interface Result {
  name: string;
  error: ApiError | null;
}

/** The last action on many VMs: `left` of `all` are not done yet. The results are in the order of the answers. */
export const bulk = signal<{ action: Action; all: number; left: number; failed: number; results: readonly Result[] } | null>(null);

/** `vms` are those that the user has confirmed. The action may have become impossible for some of them. */
export async function runMany(action: "start" | "stop", vms: readonly Vm[]) {
  const possible = new Set(candidates(action));
  const queue = vms.filter((vm) => possible.has(vm));
  if (queue.length === 0 || bulk.value?.left) return;
  const login = phase.value;
  const results: Result[] = [];
  let state = { action, all: queue.length, left: queue.length, failed: 0, results };
  bulk.value = state;
  const work = async () => {
    for (let vm = queue.shift(); vm && phase.value === login; vm = queue.shift()) {
      await runAction(vm, action);
      // The row loses the error with its next change.
      const error = vm.error.value;
      results.push({ name: vm.name, error });
      state = { ...state, left: state.left - 1, failed: state.failed + (error ? 1 : 0) };
      bulk.value = state;
    }
  };
  await Promise.all(Array.from({ length: REQUESTS_MAX }, work));
  if (phase.value !== login) bulk.value = null;
}

// ---- totals

export const RANGES = ["hour", "day"] as const;
export const range = storedSignal("range", RANGES, "day");
export const RANGE_SECONDS = { hour: 3600, day: 24 * 3600 };

export const totals = computed(() => {
  const rows = (list.value ?? []).map((vm) => vm.row.value);
  const sum = (value: (row: Row) => number) => rows.reduce((all, row) => all + value(row), 0);
  return {
    all: rows.length,
    running: sum(({ running }) => (running ? 1 : 0)),
    cpus: sum(VALUES.cpus as (row: Row) => number),
    ram: sum(VALUES.ram as (row: Row) => number),
  };
});

/** The totals of the last day, of which the server takes one each minute; null until the page has them. */
export const samples = signal<readonly Sample[] | null>(null);
const SAMPLE_INTERVAL_MS = 60_000;

async function loadSamples() {
  if (document.hidden) return;
  const login = phase.value;
  const answer = await getHistory();
  // Without an answer, the page shows the previous samples.
  if (answer.ok && phase.value === login) samples.value = answer.value;
}

const isShown = computed(() => phase.value.is === "loggedIn" && "list" in place.value && place.value.list === "overview");
effect(() => {
  if (!isShown.value) return;
  void loadSamples();
  const load = () => void loadSamples();
  const timer = setInterval(load, SAMPLE_INTERVAL_MS);
  document.addEventListener("visibilitychange", load);
  return () => {
    clearInterval(timer);
    document.removeEventListener("visibilitychange", load);
  };
});
effect(() => {
  if (phase.value.is === "loggedIn") return;
  samples.value = null;
  chosen.value = new Set();
  bulk.value = null;
});

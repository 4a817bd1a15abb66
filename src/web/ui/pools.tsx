/** The pools that the user may use. */

import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import type { PoolRow } from "./api";
import { ConfirmDialog, focusVm, LongText, timeText } from "./parts";
import { assignmentText, hasClaim, runPoolAction, shown, shownPools, type Pool, type PoolAction } from "./state";
import { poolErrorText, textFor, words } from "./words";

/** The longest delay that browsers accept for a timer. */
const TIMER_MAX_MS = 2 ** 31 - 1;

export function Pools() {
  return (
    <>
      <h2 id="pools">{words.pools.title}</h2>
      <ul class="pools" aria-labelledby="pools">
        {shownPools.value.map((pool) => (
          <PoolItem key={pool.name} pool={pool} />
        ))}
      </ul>
    </>
  );
}

function PoolItem({ pool }: { pool: Pool }) {
  const row = pool.row.value;
  const { assignment } = row;
  const isExpired = useExpired(assignment?.expires);
  const error = pool.error.value;
  const vm = assignment?.state === "Assigned" ? assignment.vm : undefined;
  return (
    <li class="pool" data-pool={row.name} data-assignment={assignment?.state ?? "None"}>
      <h3>{row.name}</h3>
      <div class="status">
        <p class="state">{stateText(row, isExpired)}</p>
        <LongText of={row.name} isError={error !== null} {...(error ? { message: poolErrorText(error) } : noteOf(row))} />
        {vm && shown.value.some(({ name }) => name === vm) && (
          <button type="button" class="link" onClick={() => focusVm(vm)}>
            {words.pools.show(vm)}
          </button>
        )}
      </div>
      <div class="facts">{row.waiting > 0 && assignment?.state !== "Waiting" && <p>{words.pools.waiting(row.waiting)}</p>}</div>
      <PoolActionButton pool={pool} row={row} />
    </li>
  );
}

/** The reason why the user waits, if the pool reports one, or else the message of the assignment. */
function noteOf({ assignment, queue }: PoolRow): { message: string } | { original: string } {
  const reason = assignment?.state === "Waiting" && textFor(words.pools.waitReasons, queue?.reason ?? "");
  return reason ? { message: reason } : { original: assignment?.message ?? "" };
}

function stateText(row: PoolRow, isExpired: boolean): string {
  const { free, assignment } = row;
  if (!assignment) return words.pools.free(free);
  const { state, vm, expires } = assignment;
  if (state !== "Assigned" || !vm) return assignmentText(row, assignment);
  return words.pools.assigned(vm, expires ? timeText(new Date(expires)) : null, isExpired);
}

/** Whether a timestamp is over; renders the component at this time. */
function useExpired(timestamp: string | undefined): boolean {
  const isExpired = useSignal(false);
  useEffect(() => {
    const end = timestamp === undefined ? Infinity : Date.parse(timestamp);
    const check = () => (isExpired.value = Date.now() >= end);
    check();
    const timer = setTimeout(check, Math.min(Math.max(end - Date.now(), 0), TIMER_MAX_MS));
    return () => clearTimeout(timer);
  }, [timestamp]);
  return isExpired.value;
}

/** One button for all actions, so that it retains the focus when the action changes. */
function PoolActionButton({ pool, row }: { pool: Pool; row: PoolRow }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const busy = pool.busy.value;
  const { assignment } = row;
  const vm = assignment?.state === "Assigned" ? assignment.vm : undefined;
  const next: PoolAction = !hasClaim(assignment) ? "get" : assignment?.state === "Assigned" ? "giveBack" : "leave";
  const action = busy?.action ?? next;
  const isEnding = assignment?.state === "Ending";
  const text = words.pools.actions[action];
  const label = busy ? text.busy : text.label;
  useEffect(() => {
    // The question is about one VM.
    dialog.current?.close();
  }, [next, vm]);
  const click = (event: MouseEvent) => {
    // The second click of a double click would request the opposite.
    if (busy || isEnding || event.detail > 1) return;
    if (action === "giveBack") dialog.current?.showModal();
    else void runPoolAction(pool, action);
  };
  return (
    <div class="actions">
      <button
        type="button"
        class={`action${busy ? " busy" : action === "get" ? " primary" : ""}`}
        aria-label={`${label}: ${row.name}`}
        aria-disabled={isEnding || busy !== null}
        aria-busy={busy !== null}
        {...(action === "giveBack" && { "aria-haspopup": "dialog" as const })}
        {...(isEnding && { title: words.pools.ending })}
        onClick={click}
      >
        {label}
      </button>
      <ConfirmDialog name={vm ?? row.name} text={words.pools.giveBack} dialog={dialog} confirm={() => void runPoolAction(pool, "giveBack")} />
    </div>
  );
}

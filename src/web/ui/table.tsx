/** All VMs in a table, with their totals. */

import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { Totals } from "./chart";
import { ActionButton, Note, StateLabel } from "./list";
import { bulk, candidates, COLUMNS, filtered, isSelected, orderBy, runMany, select, selection, sorted, type Column } from "./overview";
import { ConfirmDialog, numberText, sinceText, sizeText, Toolbar } from "./parts";
import { list, listUrl, place, query, stateOf, type Vm } from "./state";
import { errorText, words } from "./words";
import "./overview.css";

/** Rows of the first page, and of each further one. */
const PAGE = 100;

export function Overview() {
  const text = words.overview;
  const all = list.value;
  return (
    <main class="overview">
      <Toolbar title={text.title} search={text.filter} count={all && words.list.count(filtered.value.length, all.length, query.value.trim() !== "")} />
      {all && <Totals />}
      {all && <Bulk />}
      {filtered.value.length > 0 ? (
        <Table />
      ) : (
        <div class="empty">
          {(all === null ? [words.list.loading] : all.length > 0 ? [text.noMatch, text.noMatchNext] : [text.none, text.noneNext]).map((line) => (
            <p key={line}>{line}</p>
          ))}
        </div>
      )}
    </main>
  );
}

/** Actions on the selected VMs. */
function Bulk() {
  const text = words.overview;
  const dialog = useRef<HTMLDialogElement>(null);
  const asked = useSignal<readonly Vm[]>([]);
  const count = selection.value.length;
  const isBusy = (bulk.value?.left ?? 0) > 0;
  const button = (action: "start" | "stop", run: (vms: readonly Vm[]) => void) => {
    const vms = candidates(action);
    const isDisabled = vms.length === 0 || isBusy;
    return (
      <button
        type="button"
        aria-disabled={isDisabled}
        title={isDisabled ? text.notPossible : undefined}
        {...(action === "stop" && { "aria-haspopup": "dialog" as const })}
        onClick={() => isDisabled || run(vms)}
      >
        {text.many[action](vms.length)}
      </button>
    );
  };
  return (
    <div class="bulk" role="group" aria-label={text.selected(count)}>
      <p role="status">{text.selected(count)}</p>
      {button("start", (vms) => void runMany("start", vms))}
      {button("stop", (vms) => {
        asked.value = vms;
        dialog.current?.showModal();
      })}
      <p role="status">{bulk.value ? text.bulk(bulk.value) : count === 0 && text.notPossible}</p>
      <Results />
      <ConfirmDialog
        name={text.vms(asked.value.length)}
        names={asked.value.map(({ name }) => name)}
        text={text.stop}
        dialog={dialog}
        confirm={() => void runMany("stop", asked.value)}
      />
    </div>
  );
}

/** The result of each VM after the last action, the rejected ones first. */
function Results() {
  const text = words.overview;
  if (!bulk.value || bulk.value.left > 0) return null;
  const { results, failed } = bulk.value;
  const ordered = [...results].sort((a, b) => Number(b.error !== null) - Number(a.error !== null) || (a.name < b.name ? -1 : 1));
  return (
    <details key={results} class="results" open={failed > 0}>
      <summary>{text.results}</summary>
      <ul tabIndex={0} aria-label={text.results}>
        {ordered.map(({ name, error }) => (
          <li key={name} class={error ? "error" : ""}>
            <b>{name}</b>: {error ? errorText(error) : text.requested}
          </li>
        ))}
      </ul>
    </details>
  );
}

/** With roles, since browsers omit those of a table that narrow windows do not show as a table. */
function Table() {
  const shown = useSignal(PAGE);
  const rest = useRef<HTMLButtonElement>(null);
  const all = filtered.value;
  const more = () => (shown.value += PAGE);
  const hasMore = all.length > shown.value;
  useEffect(() => {
    if (!hasMore) return;
    const observer = new IntersectionObserver(([entry]) => entry?.isIntersecting && more(), { rootMargin: "50%" });
    observer.observe(rest.current!);
    return () => observer.disconnect();
  }, [hasMore, shown.value]);
  return (
    <>
      <table role="table" aria-rowcount={all.length + 1}>
        <caption class="hidden">{words.overview.title}</caption>
        <thead role="rowgroup">
          <tr role="row">
            <th scope="col" role="columnheader" class="check">
              <SelectAll />
            </th>
            {COLUMNS.map((column) => (
              <Heading key={column} column={column} />
            ))}
            <th scope="col" role="columnheader">
              <span class="hidden">{words.overview.action}</span>
            </th>
          </tr>
        </thead>
        <tbody role="rowgroup">
          {all.slice(0, shown.value).map((vm, index) => (
            <VmLine key={vm.name} vm={vm} index={index + 2} />
          ))}
        </tbody>
      </table>
      {hasMore && (
        <button ref={rest} type="button" onClick={more}>
          {words.overview.more(all.length - shown.value)}
        </button>
      )}
    </>
  );
}

function SelectAll() {
  const all = filtered.value;
  const count = selection.value.length;
  return (
    <input
      type="checkbox"
      aria-label={words.overview.selectAll(all.length)}
      checked={count === all.length}
      indeterminate={count > 0 && count < all.length}
      onChange={(event) => select(all, event.currentTarget.checked)}
    />
  );
}

function Heading({ column }: { column: Column }) {
  const { column: present, isDescending } = sorted.value;
  const isSorted = column === present;
  return (
    <th scope="col" role="columnheader" data-column={column} {...(isSorted && { "aria-sort": isDescending ? ("descending" as const) : ("ascending" as const) })}>
      <button type="button" onClick={() => orderBy(column)}>
        {words.overview.columns[column]}
        <span aria-hidden="true">{isSorted ? (isDescending ? "▼" : "▲") : ""}</span>
      </button>
    </th>
  );
}

function VmLine({ vm, index }: { vm: Vm; index: number }) {
  const row = vm.row.value;
  const state = stateOf(row);
  const { facts } = row;
  const columns = words.overview.columns;
  const cell = (column: Column, content: string | undefined, title?: string) => (
    <td role="cell" data-column={column} data-label={columns[column]} title={title}>
      {content}
    </td>
  );
  const now = place.value;
  return (
    <tr role="row" data-vm={vm.name} data-requested={row.requested} data-state={state} aria-rowindex={index} class={now.vm === vm.name ? "open" : ""}>
      <td role="cell" class="check">
        <input
          type="checkbox"
          aria-label={words.overview.select(vm.name)}
          checked={isSelected(vm)}
          onChange={(event) => select([vm], event.currentTarget.checked)}
        />
      </td>
      <th scope="row" role="rowheader" data-column="name">
        <a href={listUrl("overview", vm.name)}>{vm.name}</a>
      </th>
      <td role="cell" data-column="state">
        <StateLabel state={state} />
        <Note vm={vm} row={row} state={state} />
      </td>
      {cell("since", sinceText(facts?.since))}
      {cell("cpus", facts?.cpus ? numberText(facts.cpus) : "")}
      {cell("ram", facts?.ram ? sizeText(facts.ram) : "")}
      {cell("node", facts?.node)}
      {cell("user", row.consoleUser, facts?.usedFrom && words.overview.usedFrom(facts.usedFrom))}
      {cell("assignedTo", facts?.assignedTo)}
      <td role="cell" class="actions">
        <ActionButton vm={vm} row={row} />
      </td>
    </tr>
  );
}

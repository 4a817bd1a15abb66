/** One VM beside the list. */

import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { Actions, Note, StateLabel } from "./list";
import { focusVm, numberText, sinceText, sizeText } from "./parts";
import { list, listUrl, stateOf, type ListName, type Vm } from "./state";
import { words } from "./words";
import "./details.css";

/** Elements that use the Escape key themselves. */
const USES_ESCAPE = "dialog, [popover], input";

export function Details({ name, of }: { name: string; of: ListName }) {
  const text = words.details;
  const title = useRef<HTMLHeadingElement>(null);
  const vm = list.value?.find((vm) => vm.name === name);
  const state = vm && stateOf(vm.row.value);
  useEffect(() => title.current?.focus(), [name]);
  const last = useRef(name);
  last.current = name;
  // A narrow window has no list until it is rendered.
  useEffect(() => () => void requestAnimationFrame(() => focusVm(last.current, ":is(h2, h3, th) > a")), []);
  useEffect(() => {
    const close = (event: KeyboardEvent) => {
      const isUsed = event.target instanceof Element && event.target.closest(USES_ESCAPE);
      if (event.key === "Escape" && !isUsed) location.hash = listUrl(of);
    };
    addEventListener("keydown", close);
    return () => removeEventListener("keydown", close);
  }, [of]);
  return (
    <aside class="details" aria-labelledby="details" data-details={name} {...(state && { "data-state": state })}>
      <div class="heading">
        <h2 id="details" ref={title} tabIndex={-1}>
          {name}
        </h2>
        <a class="button" href={listUrl(of)} aria-label={text.close}>
          <span aria-hidden="true">×</span>
        </a>
      </div>
      {vm ? <Content key={name} vm={vm} /> : <p>{list.value ? words.errors.NotFound!({ status: 404, reason: "NotFound" }) : words.list.loading}</p>}
    </aside>
  );
}

function Content({ vm }: { vm: Vm }) {
  const text = words.details;
  const columns = words.overview.columns;
  const row = vm.row.value;
  const state = stateOf(row);
  const { facts } = row;
  return (
    <>
      <StateLabel state={state} />
      <Note vm={vm} row={row} state={state} />
      <Actions vm={vm} row={row} />
      <dl>
        <Fact name={text.system} value={row.system} />
        <Fact name={columns.since} value={sinceText(facts?.since)} />
        <Fact name={columns.cpus} value={facts?.cpus ? numberText(facts.cpus) : ""} />
        <Fact name={columns.ram} value={facts?.ram ? sizeText(facts.ram) : ""} />
        <Fact name={columns.node} value={facts?.node} />
        <Fact name={columns.user} value={row.consoleUser} />
        <Fact name={text.usedFrom} value={facts?.usedFrom} />
        <Fact name={columns.assignedTo} value={facts?.assignedTo} />
        <Fact name={text.permissions} value={row.may.map((right) => words.rights[right] ?? right).join(", ") || text.noPermissions} />
      </dl>
    </>
  );
}

/** A value that is known. */
export function Fact({ name, value }: { name: string; value: ComponentChildren }) {
  if (!value) return null;
  return (
    <div>
      <dt>{name}</dt>
      <dd>{value}</dd>
    </div>
  );
}

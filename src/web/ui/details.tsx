/** One VM beside the list. */

import { useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { getDetails, putSize, type Answer, type ApiError, type Row, type SizeField, type VmDetails } from "./api";
import { Actions, Note, StateLabel } from "./list";
import { focusVm, numberText, sinceText, sizeText, timeText } from "./parts";
import { list, listUrl, stateOf, type ListName, type Vm } from "./state";
import { errorText, textFor, words } from "./words";
import "./details.css";

const RELOAD_DELAY_MS = 1000;
/** An open element that uses the Escape key itself, or a field. */
const USES_ESCAPE = ':popover-open, dialog[open], input:is([type="search"], [inputmode]):focus';

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
      if (event.key === "Escape" && !document.querySelector(USES_ESCAPE)) location.hash = listUrl(of);
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
      {vm ? <Content key={`${name} ${vm.row.value.uid}`} vm={vm} /> : <p>{list.value ? words.errors.NotFound() : words.list.loading}</p>}
    </aside>
  );
}

function Content({ vm }: { vm: Vm }) {
  const text = words.details;
  const columns = words.overview.columns;
  const row = vm.row.value;
  const state = stateOf(row);
  const { facts } = row;
  const [answer, reload] = useDetails(vm);
  const details = answer?.ok ? answer.value : null;
  return (
    <>
      <StateLabel state={state} />
      <Note vm={vm} row={row} state={state} />
      <Actions vm={vm} row={row} />
      <dl>
        <Fact name={text.system} value={row.system} />
        <Fact name={columns.since} value={sinceText(facts?.since)} />
        <Fact name={columns.cpus} value={details && text.used(numberText(details.usedCpus), details.size.cpus.limit)} />
        <Fact name={columns.ram} value={details && text.used(sizeText(details.usedRam), details.size.ram.limit)} />
        <Fact name={columns.node} value={facts?.node} />
        <Fact name={columns.user} value={row.consoleUser} />
        <Fact name={text.usedFrom} value={facts?.usedFrom} />
        <Fact name={columns.assignedTo} value={facts?.assignedTo} />
        <Fact name={text.permissions} value={row.may.map((right) => textFor(words.rights, right) ?? right).join(", ") || text.noPermissions} />
        <Fact name={text.disks} value={details && <Lines of={details.disks.map(diskText)} />} />
        <Fact name={text.networks} value={details && <Lines of={details.networks.map(({ name, bridge }) => text.network(name, bridge))} />} />
        <Fact name={text.addresses} value={details && <Lines of={details.addresses} />} />
      </dl>
      {details?.mayResize && <SizeForm row={row} size={details.size} reload={reload} />}
      {answer?.ok ? (
        <Events of={answer.value} />
      ) : answer ? (
        <div class="error" role="alert">
          <p>{errorText(answer.error)}</p>
          <button type="button" onClick={() => void reload()}>
            {words.retry}
          </button>
        </div>
      ) : (
        <p>{text.loading}</p>
      )}
    </>
  );
}

/** The details of the VM, which the page reads again after each change of its row, and a function that reads them. */
function useDetails(vm: Vm): [Answer<VmDetails> | null, () => Promise<void>] {
  const details = useSignal<Answer<VmDetails> | null>(null);
  const newest = useRef(0);
  const row = vm.row.value;
  const load = async () => {
    const request = ++newest.current;
    const answer = await getDetails(vm.name);
    if (request === newest.current && (answer.ok || !details.value?.ok)) details.value = answer;
  };
  useEffect(() => {
    // An event can follow the change.
    const timer = setTimeout(() => void load(), details.value ? RELOAD_DELAY_MS : 0);
    return () => clearTimeout(timer);
  }, [row]);
  return [details.value, load];
}

const diskText = ({ name, size = "", isCd }: VmDetails["disks"][number]) =>
  isCd ? `${words.details.cd}: ${name || words.details.emptyCd}` : words.details.disk(name, size);

const Lines = ({ of }: { of: string[] }) => (
  <ul>
    {of.length > 0 ? of.map((line, index) => <li key={index}>{line}</li>) : <li>{words.details.none}</li>}
  </ul>
);

function Events({ of }: { of: VmDetails }) {
  const text = words.details;
  return (
    <>
      <h3>{text.events}</h3>
      {of.events.length === 0 && <p>{text.noEvents}</p>}
      <ol class="events">
        {of.events.map(({ time, isWarning, isByUser, reason, note, count }, index) => (
          <li key={index}>
            <p>
              {time && timeText(new Date(time))} {isWarning && <b class="error">{text.warning}</b>} {isByUser && <b>{text.byUser}</b>} {count > 1 && text.times(count)}
            </p>
            <p>
              <b lang="en">{reason}</b>: <span lang="en">{note}</span>
            </p>
          </li>
        ))}
      </ol>
    </>
  );
}

const FIELDS: readonly SizeField[] = ["cpus", "ram"];

function SizeForm({ row, size, reload }: { row: Row; size: VmDetails["size"]; reload(): Promise<void> }) {
  const text = words.size;
  const error = useSignal<ApiError | null>(null);
  const state = useSignal<"" | "busy" | "sent">("");
  const form = useRef<HTMLFormElement>(null);
  const submit = async (event: Event) => {
    event.preventDefault();
    if (state.value === "busy") return;
    const input = (field: SizeField) => form.current!.elements.namedItem(field) as HTMLInputElement;
    // Other users may have changed the fields that the user has not edited.
    const edited = FIELDS.map(input).filter(({ value, defaultValue }) => value !== defaultValue);
    error.value = null;
    state.value = edited.length > 0 ? "busy" : "";
    if (edited.length === 0) return;
    const values = edited.map(({ name, value }) => [name, name === "ram" && words.language === "de" ? value.replace(",", ".") : value]);
    const answer = await putSize(row, Object.fromEntries(values));
    if (answer.ok) await reload();
    state.value = answer.ok ? "sent" : "";
    if (answer.ok) return form.current?.reset();
    error.value = answer.error;
    form.current?.querySelector<HTMLElement>(`[name="${answer.error.field}"]`)?.focus();
  };
  const fieldError = (field: SizeField) => (error.value?.field === field ? textFor(text.reasons, error.value.reason)?.(error.value.limit ?? "") : undefined);
  const hasField = FIELDS.some((field) => fieldError(field) !== undefined);
  return (
    <form ref={form} class="size" onSubmit={(event) => void submit(event)}>
      <h3>{text.title}</h3>
      {FIELDS.map((field) => (
        <div key={field}>
          <label for={field}>{text.fields[field]}</label>
          <input
            id={field}
            name={field}
            autocomplete="off"
            inputMode={field === "cpus" ? "numeric" : "text"}
            defaultValue={size[field].requested}
            aria-invalid={fieldError(field) !== undefined}
            aria-describedby={`${field}-limit`}
          />
          <p id={`${field}-limit`} class={fieldError(field) ? "error" : ""}>
            {fieldError(field) ?? text.limit(size[field].limit)}
          </p>
        </div>
      ))}
      <button type="submit" aria-disabled={state.value === "busy"}>
        {state.value === "busy" ? text.busy : text.submit}
      </button>
      <p role="status" class={error.value ? "error" : ""}>
        {state.value === "sent" ? text.sent : error.value && !hasField ? errorText(error.value) : error.value ? "" : text.hint}
      </p>
    </form>
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

/** The course of the totals. */

import type { Sample } from "./api";
import { numberText, sizeText, timeText } from "./parts";
import { RANGE_SECONDS, RANGES, range, samples, totals } from "./overview";
import { words } from "./words";

const WIDTH = 300;
const HEIGHT = 48;

export function Totals() {
  const text = words.overview;
  const { all, running, cpus, ram } = totals.value;
  const now = Date.now() / 1000;
  const from = now - RANGE_SECONDS[range.value];
  // The last sample before the range, so that the line begins at its edge.
  const known = samples.value ?? [];
  const next = known.findIndex(({ time }) => time >= from);
  const first = Math.max(0, (next < 0 ? known.length : next) - 1);
  const course = [...known.slice(first), { time: now, running, cpus, ram }];
  return (
    <section class="totals" aria-label={text.totals}>
      <Total label={text.running} value={text.of(numberText(running), numberText(all))} course={course} of="running" from={from} format={numberText} />
      <Total label={text.columns.cpus} value={numberText(cpus)} course={course} of="cpus" from={from} format={numberText} />
      <Total label={text.columns.ram} value={sizeText(ram)} course={course} of="ram" from={from} format={sizeText} />
      <fieldset>
        <legend class="hidden">{text.range}</legend>
        {RANGES.map((name) => (
          <label key={name}>
            <input type="radio" name="range" checked={range.value === name} onChange={() => (range.value = name)} />
            {text.ranges[name]}
          </label>
        ))}
      </fieldset>
    </section>
  );
}

interface TotalProps {
  label: string;
  value: string;
  course: readonly Sample[];
  of: "running" | "cpus" | "ram";
  /** The time at the left edge, in seconds since 1970. */
  from: number;
  format(value: number): string;
}

function Total({ label, value, course, of, from, format }: TotalProps) {
  const highest = Math.max(...course.map((sample) => sample[of]));
  const lowest = Math.min(...course.map((sample) => sample[of]));
  const span = RANGE_SECONDS[range.value];
  const x = (time: number) => (Math.max(0, (time - from) / span) * WIDTH).toFixed(1);
  const y = (amount: number) => (HEIGHT - (amount / (highest || 1)) * (HEIGHT - 2) - 1).toFixed(1);
  // Between two samples, the amount is that of the first.
  const steps = course.map((sample, n) => (n === 0 ? `M${x(sample.time)} ${y(sample[of])}` : `H${x(sample.time)}V${y(sample[of])}`));
  const begin = timeText(new Date(Math.max(course[0]!.time, from) * 1000));
  return (
    <div class="total">
      <p>
        {label} <b>{value}</b>
      </p>
      <svg role="img" aria-label={words.overview.course(label, format(lowest), format(highest), begin)} viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none">
        <path vector-effect="non-scaling-stroke" d={steps.join("")} />
      </svg>
      <p class="scale" aria-hidden="true">
        <span>{begin}</span>
        <span>{words.overview.highest(format(highest))}</span>
      </p>
    </div>
  );
}

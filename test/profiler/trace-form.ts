// Checks every line of a trace for the requirements of Perfetto and chrome://tracing.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import type { profiler } from '../../lib/index.js';

type TraceEvent = profiler.TraceEvent;

/** Every line has its fields, lanes have names, and spans of a lane are nested or disjoint. */
export function requireForm(events: readonly TraceEvent[]): void {
  const named = new Set<string>();
  const open = new Map<string, TraceEvent[]>();
  let latest = 0;
  for (const event of events) {
    const json = JSON.stringify(event);
    for (const field of ['name', 'cat', 'ph'] as const) {
      assert.equal(typeof event[field], 'string', `${field} of ${json}`);
    }
    for (const field of ['ts', 'dur', 'pid', 'tid'] as const) {
      assert.ok(Number.isFinite(event[field]) && event[field] >= 0, `${field} of ${json}`);
    }
    const lane = `${event.pid}/${event.tid}`;
    if (event.ph === 'M') {
      if (event.name === 'thread_name') named.add(lane);
      continue;
    }
    assert.equal(event.ph, 'X');
    assert.ok(named.has(lane), `a lane without a name: ${json}`);
    assert.ok(event.ts >= latest, `out of order: ${json}`);
    latest = event.ts;
    const outer = (open.get(lane) ?? []).filter(({ ts, dur }) => ts + dur > event.ts);
    const around = outer.at(-1);
    const fits = !around || event.ts + event.dur <= around.ts + around.dur + 1e-6;
    assert.ok(fits, `${json} overlaps ${JSON.stringify(around)}`);
    open.set(lane, [...outer, event]);
  }
}

/** The checked lines of a trace file. */
export function readTrace(file: string): TraceEvent[] {
  const { traceEvents } = JSON.parse(readFileSync(file, 'utf8')) as profiler.TraceFile;
  requireForm(traceEvents);
  return traceEvents;
}

/** The line that names a lane. */
export function laneNamed(events: readonly TraceEvent[], name: string): TraceEvent {
  const found = events.find((event) => event.name === 'thread_name' && event.args?.name === name);
  assert.ok(found, `no lane called ${name}`);
  return found;
}

/** The spans of all lanes with this name, or this name and a number. */
export function spansIn(events: readonly TraceEvent[], name: string): TraceEvent[] {
  const lanes = events.filter(
    (event) =>
      event.name === 'thread_name' && String(event.args?.name).replace(/ \d+$/, '') === name,
  );
  return events.filter(
    ({ ph, pid, tid }) => ph === 'X' && lanes.some((lane) => lane.pid === pid && lane.tid === tid),
  );
}

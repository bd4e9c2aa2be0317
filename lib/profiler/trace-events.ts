// Converts time spans to a trace in Chrome's format, with one lane per stream, thread or disk.
// Source: "Trace Event Format", for chrome://tracing and Perfetto.
import { writeFileSync } from 'node:fs';

/** Groups of lanes, in display order. */
const PROCESSES = ['JavaScript', 'device', 'host threads', 'collectives', 'disk'] as const;

/** The group of a span. */
type TraceProcess = (typeof PROCESSES)[number];

/** A time span, in nanoseconds of one clock. */
export interface TraceSpan {
  process: TraceProcess;
  /** The lane within the process. Spans of a lane are nested or sequential. */
  lane: string;
  name: string;
  /** "step", "phase", "op", "copy", "wait", "disk", "collective". */
  category: string;
  start: number;
  end: number;
  /** Extra values for the viewer. */
  details?: Readonly<Record<string, number | string>>;
}

/** One event of the file. Times are microseconds since the first event. */
export interface TraceEvent {
  /** The name of the work, or "thread_name" or "process_name" for a lane. */
  name: string;
  /** "step", "phase", "op", "copy", "wait", "disk", "collective". */
  cat: string;
  /** "X": a span. "M": the name of a lane, without a time. */
  ph: 'X' | 'M';
  /** Start time. */
  ts: number;
  /** Duration. */
  dur: number;
  /** Process number: 10 times the rank, plus 1 to 5 in the order of PROCESSES. */
  pid: number;
  /** Lane number, starting at 1. */
  tid: number;
  /** Bytes of a copy, threads of an update, or a lane's name. */
  args?: Readonly<Record<string, number | string>>;
}

/** The content of a trace file. */
export interface TraceFile {
  /** Names of lanes, then spans by start time. */
  traceEvents: TraceEvent[];
  /** Unit of the viewer's display. The events have microseconds. */
  displayTimeUnit: 'ms';
  /** Device and rank. */
  otherData: Readonly<Record<string, string | number>>;
}

/** Each rank has its own process numbers, so that files of several ranks can be merged. */
const PROCESSES_PER_RANK = 10;

/** Converts nanoseconds to microseconds with three decimals. */
const microseconds = (ns: number): number => Math.round(ns) / 1000;

/**
 * Returns the names of lanes, then events by start time, a parent before its children. Lanes have
 * numbers in the order of their first spans.
 */
export function createTraceEvents(spans: readonly TraceSpan[], rank: number): TraceEvent[] {
  const ordered = [...spans].sort((a, b) => a.start - b.start || b.end - a.end);
  const zero = ordered[0]?.start ?? 0;
  const lanes = new Map<string, TraceEvent>();
  const labels: TraceEvent[] = [];
  const laneEvent = ({ process, lane }: TraceSpan) => {
    const key = `${process}\n${lane}`;
    const pid = rank * PROCESSES_PER_RANK + PROCESSES.indexOf(process) + 1;
    const existing = lanes.get(key);
    if (existing) return existing;
    if (![...lanes.values()].some((lane) => lane.pid === pid)) {
      const title = rank > 0 ? `rank ${rank}, ${process}` : process;
      labels.push(createLabel('process_name', pid, 0, { name: title }));
      labels.push(createLabel('process_sort_index', pid, 0, { sort_index: pid }));
    }
    const tid = [...lanes.values()].filter((lane) => lane.pid === pid).length + 1;
    const laneLabel = createLabel('thread_name', pid, tid, { name: lane });
    labels.push(laneLabel, createLabel('thread_sort_index', pid, tid, { sort_index: tid }));
    lanes.set(key, laneLabel);
    return laneLabel;
  };
  const events = ordered.map((span): TraceEvent => {
    const { pid, tid } = laneEvent(span);
    const [from, to] = [microseconds(span.start - zero), microseconds(span.end - zero)];
    const { name, category: cat, details } = span;
    const dur = Math.round((to - from) * 1000) / 1000;
    return { name, cat, ph: 'X', ts: from, dur, pid, tid, ...(details && { args: details }) };
  });
  return [...labels, ...events];
}

function createLabel(
  name: string,
  pid: number,
  tid: number,
  args: Readonly<Record<string, number | string>>,
): TraceEvent {
  return { name, cat: '__metadata', ph: 'M', ts: 0, dur: 0, pid, tid, args };
}

/** Returns spans that may overlap on a minimum number of lanes: "NAME", "NAME 2", ... */
export function spreadOverLanes(spans: readonly TraceSpan[]): TraceSpan[] {
  const ends = new Map<string, number[]>();
  return [...spans]
    .sort((a, b) => a.start - b.start)
    .map((span) => {
      const key = `${span.process}\n${span.lane}`;
      const laneEnds = ends.get(key) ?? [];
      const free = laneEnds.findIndex((end) => end <= span.start);
      const at = free < 0 ? laneEnds.length : free;
      laneEnds[at] = span.end;
      ends.set(key, laneEnds);
      return { ...span, lane: at === 0 ? span.lane : `${span.lane} ${at + 1}` };
    });
}

/** Returns sequential spans of a queue without the overlaps that come from clock rounding. */
export function removeOverlaps(spans: readonly TraceSpan[]): TraceSpan[] {
  const ends = new Map<string, number>();
  return spans.map((span) => {
    const key = `${span.process}\n${span.lane}`;
    const start = Math.max(span.start, ends.get(key) ?? Number.NEGATIVE_INFINITY);
    const end = Math.max(start, span.end);
    ends.set(key, end);
    return { ...span, start, end };
  });
}

/** Writes the file, and replaces an old one. Throws file system errors. */
export function writeTrace(path: string, file: TraceFile): void {
  const { traceEvents: events, ...rest } = file;
  const lines = events.map((event) => JSON.stringify(event)).join(',\n');
  const tail = JSON.stringify(rest).slice(1);
  writeFileSync(path, `{"traceEvents":[\n${lines}\n],${tail}\n`);
}

// A trace in Chrome's format: spans of time in lanes, a lane for each stream, thread or disk.
// Source: "Trace Event Format", which chrome://tracing and Perfetto open.
import { writeFileSync } from 'node:fs';

/** Groups of lanes, in the order in which they are shown. */
const PROCESSES = ['JavaScript', 'device', 'host threads', 'collectives', 'disk'] as const;

/** Who has done something. */
export type TraceProcess = (typeof PROCESSES)[number];

/** Something that took time; nanoseconds of one clock. */
export interface TraceSpan {
  process: TraceProcess;
  /** The lane within the process: spans of a lane lie one in another, or one after the other. */
  lane: string;
  name: string;
  /** "step", "phase", "op", "copy", "wait", "disk", "collective". */
  category: string;
  start: number;
  end: number;
  /** What the viewer shows of it beside its time. */
  details?: Readonly<Record<string, number | string>>;
}

/** One line of the file; times in microseconds since the first. */
export interface TraceEvent {
  /** What was done; of a lane's name "thread_name" or "process_name". */
  name: string;
  /** "step", "phase", "op", "copy", "wait", "disk", "collective". */
  cat: string;
  /** A span, or the name of a lane ("M"), which has no time. */
  ph: 'X' | 'M';
  /** Its beginning. */
  ts: number;
  /** How long it took. */
  dur: number;
  /** Who has done it: 10 times the rank, and 1 to 5 in the order of PROCESSES. */
  pid: number;
  /** Its lane, from 1 on. */
  tid: number;
  /** Bytes of a copy, threads of an update; a lane's name. */
  args?: Readonly<Record<string, number | string>>;
}

/** What a file holds. */
export interface TraceFile {
  /** Names of lanes, then spans in the order of their beginnings. */
  traceEvents: TraceEvent[];
  /** In which viewers show times; those of the lines are microseconds. */
  displayTimeUnit: 'ms';
  /** The device and the rank. */
  otherData: Readonly<Record<string, string | number>>;
}

/** Processes of a rank have numbers of their own: files of several ranks can be joined. */
const PROCESSES_PER_RANK = 10;

/** Nanoseconds to microseconds, of which three decimals are exact. */
const microseconds = (ns: number): number => Math.round(ns) / 1000;

/**
 * `spans` as lines in the order of their beginnings, a longer one before those inside it. Lanes are
 * numbered in the order of their first spans.
 */
export function traceEvents(spans: readonly TraceSpan[], rank: number): TraceEvent[] {
  const ordered = [...spans].sort((a, b) => a.start - b.start || b.end - a.end);
  const zero = ordered[0]?.start ?? 0;
  const lanes = new Map<string, TraceEvent>();
  const named: TraceEvent[] = [];
  const place = ({ process, lane }: TraceSpan) => {
    const key = `${process}\n${lane}`;
    const pid = rank * PROCESSES_PER_RANK + PROCESSES.indexOf(process) + 1;
    const found = lanes.get(key);
    if (found) return found;
    if (![...lanes.values()].some((one) => one.pid === pid)) {
      const title = rank > 0 ? `rank ${rank}, ${process}` : process;
      named.push(label('process_name', pid, 0, { name: title }));
      named.push(label('process_sort_index', pid, 0, { sort_index: pid }));
    }
    const tid = [...lanes.values()].filter((one) => one.pid === pid).length + 1;
    const made = label('thread_name', pid, tid, { name: lane });
    named.push(made, label('thread_sort_index', pid, tid, { sort_index: tid }));
    lanes.set(key, made);
    return made;
  };
  const events = ordered.map((span): TraceEvent => {
    const { pid, tid } = place(span);
    const [from, to] = [microseconds(span.start - zero), microseconds(span.end - zero)];
    const { name, category: cat, details } = span;
    const dur = Math.round((to - from) * 1000) / 1000;
    return { name, cat, ph: 'X', ts: from, dur, pid, tid, ...(details && { args: details }) };
  });
  return [...named, ...events];
}

function label(
  name: string,
  pid: number,
  tid: number,
  args: Readonly<Record<string, number | string>>,
): TraceEvent {
  return { name, cat: '__metadata', ph: 'M', ts: 0, dur: 0, pid, tid, args };
}

/** Spans that may overlap, in as few lanes as keep them apart: "NAME", "NAME 2", ... */
export function apart(spans: readonly TraceSpan[]): TraceSpan[] {
  const ends = new Map<string, number[]>();
  return [...spans]
    .sort((a, b) => a.start - b.start)
    .map((span) => {
      const key = `${span.process}\n${span.lane}`;
      const taken = ends.get(key) ?? [];
      const free = taken.findIndex((end) => end <= span.start);
      const at = free < 0 ? taken.length : free;
      taken[at] = span.end;
      ends.set(key, taken);
      return { ...span, lane: at === 0 ? span.lane : `${span.lane} ${at + 1}` };
    });
}

/**
 * Spans of queues, whose work runs one after the other: what the rounding of clocks has made
 * overlap is put right.
 */
export function inTurn(spans: readonly TraceSpan[]): TraceSpan[] {
  const ends = new Map<string, number>();
  return spans.map((span) => {
    const key = `${span.process}\n${span.lane}`;
    const start = Math.max(span.start, ends.get(key) ?? Number.NEGATIVE_INFINITY);
    const end = Math.max(start, span.end);
    ends.set(key, end);
    return { ...span, start, end };
  });
}

/** Writes the file anew. Throws what the file system throws. */
export function writeTrace(path: string, file: TraceFile): void {
  const { traceEvents: events, ...rest } = file;
  const lines = events.map((event) => JSON.stringify(event)).join(',\n');
  const tail = JSON.stringify(rest).slice(1);
  writeFileSync(path, `{"traceEvents":[\n${lines}\n],${tail}\n`);
}

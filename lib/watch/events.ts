// Events of a run: one JSON object a line in RUN_DIR/watch/events.jsonl.

import { join } from 'node:path';
import type { JsonValue } from '../../types/json.js';
import { isObject } from '../runtime/is-object.js';
import { required } from '../runtime/required.js';

/** Tracks of numbers. All rows of a track share their x axis. */
export const TRACKS = ['train', 'speed', 'eval', 'phases', 'memory', 'own'] as const;
export type TrackName = (typeof TRACKS)[number];

/** Milliseconds since 1970. Writers fill it in. */
interface Timed {
  time: number;
}

/** Numbers of one step. */
interface RowEvent extends Timed {
  e: 'row';
  track: TrackName;
  step: number;
  values: Readonly<Record<string, number>>;
}

/** Busy milliseconds of each rank in a step: forward, backward and update without waits. */
interface RanksEvent extends Timed {
  e: 'ranks';
  step: number;
  busy: readonly number[];
}

/** A process begins the run, or resumes it. Later steps replace equal steps of earlier starts. */
export interface StartEvent extends Timed {
  e: 'start';
  name: string;
  /** Facts by name: device, ranks, model, versions. */
  about: Readonly<Record<string, JsonValue>>;
  config: JsonValue;
  /** The process, to find out whether it still runs. */
  pid: number;
  host: string;
}

/** The length of the run became known. */
interface LengthEvent extends Timed {
  e: 'length';
  steps: number;
}

/** A text that the model generated. */
export interface TextEvent extends Timed {
  e: 'text';
  step: number;
  prompt: string;
  text: string;
}

/** A line of the run's log. */
export interface LogEvent extends Timed {
  e: 'log';
  line: string;
}

/** A message that needs attention. */
export interface NoticeEvent extends Timed {
  e: 'notice';
  level: NoticeLevel;
  message: string;
  step?: number;
}

/** Severity of a notice on the page. */
export type NoticeLevel = 'info' | 'warning' | 'error';

/** The run ended in order. */
interface EndEvent extends Timed {
  e: 'end';
  reason: string;
}

export type RunEvent =
  | RowEvent
  | RanksEvent
  | StartEvent
  | LengthEvent
  | TextEvent
  | LogEvent
  | NoticeEvent
  | EndEvent;

/** An event before the writer adds its time. */
export type UntimedEvent = RunEvent extends infer One
  ? One extends Timed
    ? Omit<One, 'time'>
    : never
  : never;

/** Limits of one event. Readers ignore the rest. */
const MAX_SIZES = { columns: 64, name: 64, ranks: 4096, line: 4096, text: 16_384, facts: 64 };

/** The file of a run's events. */
export const eventsFile = (dir: string): string => join(dir, 'watch', 'events.jsonl');

/** Returns the event as a line with its newline. Non-finite numbers become strings. */
export function encode(event: RunEvent): string {
  return `${JSON.stringify(event, (_, value) => (typeof value === 'number' ? toJsonNumber(value) : value))}\n`;
}

/** Seven digits hold an f32; a step or a time keeps all of its digits. */
function toJsonNumber(value: number): number | string {
  if (Number.isSafeInteger(value)) return value;
  return Number.isFinite(value) ? Number(value.toPrecision(7)) : String(value);
}

/**
 * Returns the event of a line, or null for a line without one: a torn line, another JSON, or an
 * event of a later version. Any process may have written the file, so every field is checked.
 */
export function decode(line: string): RunEvent | null {
  let value: unknown;
  try {
    value = JSON.parse(line);
  } catch {
    return null;
  }
  if (!isObject(value) || !isTime(value.time) || typeof value.e !== 'string') return null;
  const read = Object.hasOwn(READERS, value.e) ? READERS[value.e as RunEvent['e']] : null;
  const fields = read?.(value) ?? null;
  return fields && ({ e: value.e, time: value.time, ...fields } as RunEvent);
}

type Fields<Type extends RunEvent['e']> = Omit<Extract<RunEvent, { e: Type }>, 'e' | 'time'>;
type Reader<Type extends RunEvent['e']> = (value: Record<string, unknown>) => Fields<Type> | null;

const READERS: { readonly [Type in RunEvent['e']]: Reader<Type> } = {
  row({ track, step, values }) {
    const name = TRACKS.find((item) => item === track);
    if (name === undefined || !isStep(step) || !isObject(values)) return null;
    const numbers: Record<string, number> = Object.create(null);
    let count = 0;
    for (const column of Object.keys(values)) {
      const number = numberOf(values[column]);
      if (number === null || column.length > MAX_SIZES.name) continue;
      if (++count > MAX_SIZES.columns) break;
      numbers[column] = number;
    }
    return { track: name, step, values: numbers };
  },
  ranks({ step, busy }) {
    if (!isStep(step) || !Array.isArray(busy) || busy.length > MAX_SIZES.ranks) return null;
    return { step, busy: busy.map((item) => numberOf(item) ?? Number.NaN) };
  },
  start({ name, about, config, pid, host }) {
    const facts = isObject(about) ? Object.entries(about).slice(0, MAX_SIZES.facts) : [];
    return {
      name: textOf(name, MAX_SIZES.name),
      about: Object.fromEntries(facts) as Record<string, JsonValue>,
      config: (config ?? null) as JsonValue,
      pid: isStep(pid) ? pid : 0,
      host: textOf(host, MAX_SIZES.line),
    };
  },
  length: ({ steps }) => (isStep(steps) ? { steps } : null),
  text({ step, prompt, text }) {
    if (!isStep(step)) return null;
    return { step, prompt: textOf(prompt, MAX_SIZES.text), text: textOf(text, MAX_SIZES.text) };
  },
  log: ({ line }) => ({ line: textOf(line, MAX_SIZES.line) }),
  notice({ level, message, step }) {
    const known = (['info', 'warning', 'error'] as const).find((item) => item === level);
    const place = isStep(step) ? { step } : {};
    return { level: known ?? 'info', message: textOf(message, MAX_SIZES.line), ...place };
  },
  end: ({ reason }) => ({ reason: textOf(reason, MAX_SIZES.name) }),
};

const NONFINITE: Readonly<Record<string, number>> = {
  NaN: Number.NaN,
  Infinity: Number.POSITIVE_INFINITY,
  '-Infinity': Number.NEGATIVE_INFINITY,
};

function numberOf(value: unknown): number | null {
  if (typeof value === 'number') return value;
  return typeof value === 'string' && Object.hasOwn(NONFINITE, value)
    ? required(NONFINITE[value])
    : null;
}

const isStep = (value: unknown): value is number =>
  typeof value === 'number' && Number.isSafeInteger(value) && value >= 0;

/** Milliseconds up to the last date of JavaScript. */
const isTime = (value: unknown): value is number =>
  typeof value === 'number' && value >= 0 && value <= 8.64e15;

const textOf = (value: unknown, max: number): string =>
  typeof value === 'string' ? value.slice(0, max) : '';

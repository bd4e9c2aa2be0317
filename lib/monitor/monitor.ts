// What a place that keeps the numbers of a run has to offer: the interface of every monitor.
import { refusedValue } from '../runtime/refused.js';

/** One value of one metric. */
export interface MonitorEvent {
  /** DeepSpeed's names are paths: "Train/Samples/lr". */
  name: string;
  /** The number itself. */
  value: number;
  /** The x axis; DeepSpeed counts global samples. */
  step: number;
}

/**
 * Receives events in the order of training, from the training thread: write() should neither block
 * for long nor keep the array. Whatever it throws, or its promises reject with, ends this monitor,
 * not the run.
 */
export interface Monitor {
  /** Takes note of events; it may keep them until flush(). */
  write(events: readonly MonitorEvent[]): void;
  /** Resolves when everything written so far would survive a crash of the machine. */
  flush(): Promise<void>;
  /** No write() follows. */
  close(): void;
}

/**
 * `events` when they are a list of events. Throws DS_ARGUMENT, naming `op` and the one that is
 * none.
 */
export function requireEvents(op: string, events: unknown): readonly MonitorEvent[] {
  const expected = 'a list of { name, value, step }';
  if (!Array.isArray(events)) throw refusedValue(op, expected, events);
  for (const [i, event] of events.entries()) {
    const { name, value, step } = (event ?? {}) as Partial<MonitorEvent>;
    const isEvent = typeof name === 'string' && typeof value === 'number';
    if (isEvent && typeof step === 'number') continue;
    const wanted = '{ name, value, step } with a text and two numbers';
    throw refusedValue(`${op} event ${i}`, wanted, event);
  }
  return events;
}

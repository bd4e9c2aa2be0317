// Declares the interface of monitors, which receive the metrics of a run.
import { valueError } from '../runtime/input-errors.js';

/** A value of a metric. */
export interface MonitorEvent {
  /** DeepSpeed's names are paths: "Train/Samples/lr". */
  name: string;
  /** Value of the metric. */
  value: number;
  /** Position on the x axis. DeepSpeed uses the number of global samples. */
  step: number;
}

/**
 * Receives events in training order, on the training thread. write() must be fast, and must not
 * keep the array.
 *
 * If a method throws or its promise rejects, this monitor ends, and the run continues.
 */
export interface Monitor {
  /** Accepts events. May buffer them until flush(). */
  write(events: readonly MonitorEvent[]): void;
  /** Resolves when all written events would survive a crash of the machine. */
  flush(): Promise<void>;
  /** Ends the monitor. No write() follows. */
  close(): void;
}

/**
 * Returns `events` if they are valid. Throws DS_ARGUMENT with `op` and the index of the first
 * invalid event.
 */
export function requireEvents(op: string, events: unknown): readonly MonitorEvent[] {
  const expected = 'a list of { name, value, step }';
  if (!Array.isArray(events)) throw valueError(op, expected, events);
  for (const [i, event] of events.entries()) {
    const { name, value, step } = (event ?? {}) as Partial<MonitorEvent>;
    const isEvent = typeof name === 'string' && typeof value === 'number';
    if (isEvent && typeof step === 'number') continue;
    const eventForm = '{ name, value, step }: a string and two numbers';
    throw valueError(`${op} event ${i}`, eventForm, event);
  }
  return events;
}

// Stop signals of this process, noticed even while its event loop is blocked.
import { constants } from 'node:os';
import { isMainThread } from 'node:worker_threads';

import { DsError } from '../errors.js';
import { addon } from './addon.js';
import { native } from './native.js';
import { entriesOf } from './typed-keys.js';

/** Number of watches of this thread, by signal number. */
const watches = new Map<number, number>();

/**
 * A listener keeps Node's own handler installed, independent of other listeners. The native handler
 * precedes it and passes signals on, so other listeners still run when the event loop continues.
 */
const listener = (): void => {};

/**
 * Records the first of `signals` that arrives until dispose(). Another signal at least half a
 * second later has its default effect at once. In a worker thread, where Node has no signals, it
 * records the signals that the main thread watches.
 */
export class StopSignals {
  private readonly numbers: number[] = [];

  /** Throws DS_ARGUMENT for a signal that cannot be handled. */
  constructor(signals: readonly NodeJS.Signals[]) {
    if (!isMainThread) return;
    try {
      for (const signal of new Set(signals)) this.numbers.push(watch(signal));
    } catch (error) {
      this.dispose();
      throw error;
    }
  }

  /** The first signal that arrived; null before. */
  get receivedSignals(): NodeJS.Signals | null {
    const number = addon.notedSignal();
    return number === 0 ? null : nameOf(number);
  }

  /** Restores the previous handlers. */
  dispose(): void {
    for (const number of this.numbers.splice(0)) unwatch(number);
  }
}

function watch(signal: NodeJS.Signals): number {
  const number = constants.signals[signal];
  const others = watches.get(number) ?? 0;
  if (others === 0) {
    process.on(signal, listener);
    try {
      native(() => addon.watchSignal(number));
    } catch (error) {
      process.off(signal, listener);
      throw error;
    }
  }
  watches.set(number, others + 1);
  return number;
}

function unwatch(number: number): void {
  const others = (watches.get(number) ?? 1) - 1;
  watches.set(number, others);
  if (others > 0) return;
  native(() => addon.unwatchSignal(number));
  process.off(nameOf(number), listener);
}

/**
 * Throws DS_ARGUMENT unless `signals` is a list of names that this system has and a program can
 * handle.
 */
export function requireSignals(signals: unknown): void {
  const isGood = (name: unknown): boolean =>
    typeof name === 'string' &&
    Object.hasOwn(constants.signals, name) &&
    !['SIGKILL', 'SIGSTOP'].includes(name);
  if (Array.isArray(signals) && signals.every(isGood)) return;
  throw new DsError({
    code: 'DS_ARGUMENT',
    op: 'initialize stopSignals',
    expected: "a list of signals that a program can handle, such as ['SIGTERM', 'SIGUSR2']",
    got: JSON.stringify(signals) ?? String(signals),
  });
}

function nameOf(number: number): NodeJS.Signals {
  const known = entriesOf<NodeJS.Signals, number>(constants.signals);
  return known.find(([, other]) => other === number)?.[0] ?? 'SIGTERM';
}

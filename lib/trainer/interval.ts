// Checks intervals of updates and fractions of a run.
import { valueError } from '../runtime/input-errors.js';

/** An interval: a number of updates, a fraction of all updates (below 1), or "epoch". */
export type Interval = number | 'epoch';

const isStepCount = (value: unknown): value is number =>
  typeof value === 'number' && value >= 0 && (value < 1 || Number.isSafeInteger(value));

/**
 * Returns a number of updates, or a fraction of them below 1. Throws DS_ARGUMENT for another value.
 */
export function requireSteps(op: string, value: number): number {
  if (isStepCount(value)) return value;
  throw valueError(op, 'a number of updates, or a fraction of all updates below 1', value);
}

/**
 * Returns an interval. `more` names other values in the message. Throws DS_ARGUMENT for another
 * value.
 */
export function requireEvery(op: string, value: Interval, more = ''): Interval {
  if (value === 'epoch' || (isStepCount(value) && value > 0)) return value;
  const expected = `a number of updates, a fraction of all updates below 1, or "epoch"${more}`;
  throw valueError(op, expected, value);
}

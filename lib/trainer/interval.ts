// Checks options that are intervals of updates or fractions of a run.
import { valueError } from '../runtime/input-errors.js';

/** An interval: a number of updates, a fraction of all updates (less than 1), or "epoch". */
export type Interval = number | 'epoch';

const isStepCount = (value: unknown): value is number =>
  typeof value === 'number' && value >= 0 && (value < 1 || Number.isSafeInteger(value));

/**
 * Returns `value`. Throws DS_ARGUMENT unless it is a number of updates or a fraction less than 1.
 */
export function requireSteps(op: string, value: number): number {
  if (isStepCount(value)) return value;
  throw valueError(op, 'a number of updates, or a fraction of all updates below 1', value);
}

/**
 * Returns `value`. Throws DS_ARGUMENT unless it is an interval. `more` names other valid values in
 * the error.
 */
export function requireEvery(op: string, value: Interval, more = ''): Interval {
  if (value === 'epoch' || (isStepCount(value) && value > 0)) return value;
  const expected = `a number of updates, a fraction of all updates below 1, or "epoch"${more}`;
  throw valueError(op, expected, value);
}

// Intervals of updates and shares of a run.
import { valueError } from '../runtime/input-errors.js';

/** An interval: a number of updates, a share of all updates (below 1), or "epoch". */
export type Interval = number | 'epoch';

const isSteps = (value: unknown): value is number =>
  typeof value === 'number' && value >= 0 && (value < 1 || Number.isSafeInteger(value));

/** Returns a number of updates, or a share of them below 1. */
export function requireSteps(op: string, value: number): number {
  if (isSteps(value)) return value;
  throw valueError(op, 'a number of updates, or a fraction of all updates below 1', value);
}

/** Returns an interval. `more` names further values in the message. */
export function requireEvery(op: string, value: Interval, more = ''): Interval {
  if (value === 'epoch' || (isSteps(value) && value > 0)) return value;
  const expected = `a number of updates, a fraction of all updates below 1, or "epoch"${more}`;
  throw valueError(op, expected, value);
}

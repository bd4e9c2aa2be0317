// Checks integers that come from options and saved states.
import { DsError } from '../errors.js';

/** `value` when it is an integer of at least `least`. Throws DS_ARGUMENT, naming `op`. */
export function requireInteger(op: string, value: unknown, least: number): number {
  if (Number.isSafeInteger(value) && (value as number) >= least) return value as number;
  throw new DsError({
    code: 'DS_ARGUMENT',
    op,
    expected: `an integer of at least ${least}`,
    got: JSON.stringify(value) ?? String(value),
  });
}

// Values that an invariant of the caller guarantees.
import { DsError } from '../errors.js';

/**
 * Returns `value`: an element below a list's length, an entry of a map that has the key, a group of
 * a match. Throws DS_INTERNAL if it is missing.
 */
export function required<T>(value: T | null | undefined): T {
  return value ?? missing();
}

function missing(): never {
  throw new DsError({
    code: 'DS_INTERNAL',
    op: 'required',
    expected: 'a value',
    got: 'none',
    hint: 'This is an error of the library: please report it with its stack.',
  });
}

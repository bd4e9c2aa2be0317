// Functions that return a value that must exist, and throw DS_INTERNAL if it does not.
import { DsError } from '../errors.js';

/**
 * Returns `value`, which the caller knows to exist: an element below a list's length, the entry of
 * a known key, or a group of a match. Throws DS_INTERNAL if it is missing.
 */
export function required<T>(value: T | null | undefined): T {
  return value ?? missingError();
}

/** Returns `value`, which may be null. Throws DS_INTERNAL if it is undefined. */
export function defined<T>(value: T | undefined): T {
  return value === undefined ? missingError() : value;
}

type Tuple<T, Count extends number, Made extends T[] = []> = Made['length'] extends Count
  ? Made
  : Tuple<T, Count, [...Made, T]>;

/**
 * Returns a list of at least `count` elements as a tuple: `const [rows, columns] =
 * leading(x.shape, 2)`. Throws DS_INTERNAL for a shorter list.
 */
export function leading<T, Count extends number>(
  list: readonly T[],
  count: Count,
): Tuple<T, Count> {
  return list.length < count ? missingError() : (list as Tuple<T, Count>);
}

function missingError(): never {
  throw new DsError({
    code: 'DS_INTERNAL',
    op: 'required',
    expected: 'a value',
    got: 'none',
    hint: 'This is an error of the library: please report it with its stack.',
  });
}

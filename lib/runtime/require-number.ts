// Checks numbers that come from options, arguments and saved states.
import { DsError } from '../errors.js';
import { formatValue } from './format-value.js';
import { valueError } from './input-errors.js';

/** Returns `value` if it is an integer of at least `min`. Throws DS_ARGUMENT with `op`. */
export function requireInteger(op: string, value: unknown, min: number): number {
  if (typeof value === 'number' && Number.isSafeInteger(value) && value >= min) return value;
  throw valueError(op, `an integer of at least ${min}`, value);
}

/** Returns `value` if it is a finite number in [`min`, `below`). Throws DS_ARGUMENT with `op`. */
export function requireFinite(
  op: string,
  value: unknown,
  min = Number.NEGATIVE_INFINITY,
  below = Number.POSITIVE_INFINITY,
): number {
  if (typeof value === 'number' && Number.isFinite(value) && value >= min && value < below) {
    return value;
  }
  const bounded = min === Number.NEGATIVE_INFINITY ? '' : ` of at least ${min}`;
  const open = below === Number.POSITIVE_INFINITY ? '' : ` and below ${below}`;
  throw valueError(op, `a finite number${bounded}${open}`, value);
}

/** Returns `value` if it is a number, also infinite or NaN. Throws DS_ARGUMENT with `op`. */
export function requireNumber(op: string, value: unknown): number {
  if (typeof value === 'number') return value;
  throw valueError(op, 'a number', value);
}

/** Returns `shape` if it is a list of integers of 0 or more. Throws DS_SHAPE with `op`. */
export function requireSizes(op: string, shape: unknown): readonly number[] {
  if (Array.isArray(shape)) {
    let d = 0;
    while (d < shape.length && Number.isSafeInteger(shape[d]) && shape[d] >= 0) ++d;
    if (d === shape.length) return shape;
  }
  const hint =
    typeof shape === 'number'
      ? `A shape is a list: [${shape}].`
      : 'Apply Math.floor() to the result of a division.';
  const expected = 'a shape: a list of integers of 0 and more';
  throw new DsError({ code: 'DS_SHAPE', op, expected, got: formatValue(shape), hint });
}

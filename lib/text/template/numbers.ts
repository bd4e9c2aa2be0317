// Converts values to numbers as Python's functions do: floats, indices and integer parts.
import { TemplateFault, typeError, valueError } from './fault.js';
import { Float, normalizeInteger, toIntegerOrNull, typeName, type Value } from './values.js';

export type Integer = number | bigint;

/** Returns a number as a float; null for other values. Throws OverflowError. */
export function toFloatOrNull(value: Value): number | null {
  if (value instanceof Float) return value.value;
  const integer = toIntegerOrNull(value);
  if (integer === null) return null;
  const float = Number(integer);
  if (Number.isFinite(float)) return float;
  throw new TemplateFault('OverflowError', 'int too large to convert to float');
}

export const isNumber = (value: Value): boolean =>
  value instanceof Float || toIntegerOrNull(value) !== null;

/** Returns an index for Python's methods. Throws TypeError. */
export function requireIndex(value: Value): number {
  const integer = toIntegerOrNull(value);
  if (integer !== null) return Number(integer);
  throw typeError(`'${typeName(value)}' object cannot be interpreted as an integer`);
}

/** int() of a float. Throws OverflowError and ValueError. */
export function truncateFloat(value: number): Value {
  if (Number.isNaN(value)) throw valueError('cannot convert float NaN to integer');
  if (!Number.isFinite(value)) {
    throw new TemplateFault('OverflowError', 'cannot convert float infinity to integer');
  }
  const whole = Math.trunc(value);
  return Number.isSafeInteger(whole) ? whole + 0 : normalizeInteger(BigInt(whole));
}

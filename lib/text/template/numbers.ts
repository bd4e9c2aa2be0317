// Numbers as Python's functions take them: floats, indices and whole parts.
import { TemplateFault, typeError, valueError } from './fault.js';
import { Float, integerOf, normalized, typeName, type Value } from './values.js';

export type Integer = number | bigint;

/** A number as a float; null for other values. Throws OverflowError. */
export function floatOf(value: Value): number | null {
  if (value instanceof Float) return value.value;
  const integer = integerOf(value);
  if (integer === null) return null;
  const float = Number(integer);
  if (Number.isFinite(float)) return float;
  throw new TemplateFault('OverflowError', 'int too large to convert to float');
}

export const isNumber = (value: Value): boolean =>
  value instanceof Float || integerOf(value) !== null;

/** An index such as Python's methods take. Throws TypeError. */
export function indexOf(value: Value): number {
  const integer = integerOf(value);
  if (integer !== null) return Number(integer);
  throw typeError(`'${typeName(value)}' object cannot be interpreted as an integer`);
}

/** int() of a float. Throws OverflowError and ValueError. */
export function truncated(value: number): Value {
  if (Number.isNaN(value)) throw valueError('cannot convert float NaN to integer');
  if (!Number.isFinite(value)) {
    throw new TemplateFault('OverflowError', 'cannot convert float infinity to integer');
  }
  const whole = Math.trunc(value);
  return Number.isSafeInteger(whole) ? whole + 0 : normalized(BigInt(whole));
}

// Helpers of operator % and str.format(): digits of floats, signs and characters.
import { formatExponential, formatFixed, formatGeneral } from './digits.js';
import { requireText, TemplateFault, typeError, valueError } from './fault.js';
import { escapeCode } from './print.js';
import { textLength } from './unicode.js';
import { toIntegerOrNull, toTextOrNull, type Value } from './values.js';

export function requireSize(size: number, name: string): number {
  if (Math.abs(size) > 2 ** 31 - 1) throw valueError(`${name} too big`);
  requireText(Math.abs(size));
  return size;
}

/** ascii(): escapes non-ASCII letters. */
export const escapeNonAscii = (text: string): string =>
  text.replace(/[\x80-\u{10ffff}]/gu, escapeCode);

export function toCharacter(value: Value): string {
  const text = toTextOrNull(value);
  if (text !== null && textLength(text) === 1) return text;
  const code = toIntegerOrNull(value);
  if (code === null) throw typeError('%c requires int or char');
  if (code < 0 || code > 0x10ffff) {
    throw new TemplateFault('OverflowError', '%c arg not in range(0x110000)');
  }
  return String.fromCodePoint(Number(code));
}

export const isNegativeNumber = (value: number): boolean => value < 0 || Object.is(value, -0);

export const formatSign = (isNegative: boolean, flags: string): string =>
  isNegative ? '-' : flags.includes('+') ? '+' : flags.includes(' ') ? ' ' : '';

/** Returns the digits of |value| in a float format, whose case applies to letters. */
export function formatFloatDigits(
  value: number,
  type: string,
  precision: number,
  keepsZeros: boolean,
): string {
  requireSize(precision, 'precision');
  const kind = type.toLowerCase();
  let text: string;
  if (Number.isNaN(value)) text = 'nan';
  else if (!Number.isFinite(value)) text = 'inf';
  else if (kind === 'e') text = formatExponential(value, precision);
  else if (kind === 'f') text = formatFixed(value, precision);
  else text = formatGeneral(value, precision, keepsZeros);
  if (keepsZeros && precision === 0 && kind !== 'g' && Number.isFinite(value)) {
    text = text.replace(/^\d+/, '$&.');
  }
  return type === kind ? text : text.toUpperCase();
}

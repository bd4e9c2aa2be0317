// Helpers of both text formats: digits of floats, signs, characters.
import { exponential, fixed, general } from './digits.js';
import { requireText, TemplateFault, typeError, valueError } from './fault.js';
import { codeEscape } from './print.js';
import { textLength } from './unicode.js';
import { integerOf, textOf, type Value } from './values.js';

export function requireSize(size: number, name: string): number {
  if (Math.abs(size) > 2 ** 31 - 1) throw valueError(`${name} too big`);
  requireText(Math.abs(size));
  return size;
}

/** ascii(): other letters as escapes. */
export const asciiOf = (text: string): string => text.replace(/[\x80-\u{10ffff}]/gu, codeEscape);

export function characterOf(value: Value): string {
  const text = textOf(value);
  if (text !== null && textLength(text) === 1) return text;
  const code = integerOf(value);
  if (code === null) throw typeError('%c requires int or char');
  if (code < 0 || code > 0x10ffff) {
    throw new TemplateFault('OverflowError', '%c arg not in range(0x110000)');
  }
  return String.fromCodePoint(Number(code));
}

export const isBelow = (value: number): boolean => value < 0 || Object.is(value, -0);

export const signOf = (isNegative: boolean, flags: string): string =>
  isNegative ? '-' : flags.includes('+') ? '+' : flags.includes(' ') ? ' ' : '';

/** Digits of |value| by a type of floats, which also decides their case. */
export function floatDigits(
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
  else if (kind === 'e') text = exponential(value, precision);
  else if (kind === 'f') text = fixed(value, precision);
  else text = general(value, precision, keepsZeros);
  if (keepsZeros && precision === 0 && kind !== 'g' && Number.isFinite(value)) {
    text = text.replace(/^\d+/, '$&.');
  }
  return type === kind ? text : text.toUpperCase();
}

// Python's int() and float() for texts.
import { required } from '../../runtime/required.js';
import { requireBits, spendText, valueError } from './fault.js';
import { repr } from './print.js';
import { normalizeInteger, type Value } from './values.js';

const PREFIXES: Readonly<Record<number, RegExp>> = { 2: /^0b_?/i, 8: /^0o_?/i, 16: /^0x_?/i };

/** Whitespace that int() and float() skip; fewer characters than strip(). */
const BLANKS =
  /^[\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+|[\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+$/g;

/** Returns the value of a decimal digit in any script; -1 for other letters. */
function digitValue(letter: string): number {
  if (letter >= '0' && letter <= '9') return letter.charCodeAt(0) - 48;
  if (!/\p{Nd}/u.test(letter)) return -1;
  // Digits of a script are consecutive, from its zero on, in ranges of ten.
  const code = required(letter.codePointAt(0));
  let zero = code;
  while (code - zero < 10 && /\p{Nd}/u.test(String.fromCodePoint(zero - 1))) zero--;
  return code - zero < 10 ? code - zero : (code - zero) % 10;
}

/** Replaces digits of other scripts by ASCII digits. */
const toAsciiDigits = (text: string): string =>
  !/[\x80-\uffff]/.test(text)
    ? text
    : Array.from(text, (letter) => {
        const digit = digitValue(letter);
        return digit < 0 ? letter : String(digit);
      }).join('');

/** int(text, base). Throws ValueError. */
export function readInteger(text: string, base: number): Value {
  spendText(text.length);
  if (base !== 0 && (base < 2 || base > 36))
    throw valueError('int() base must be >= 2 and <= 36, or 0');
  const bare = toAsciiDigits(text.replace(BLANKS, ''));
  const [, sign = '', rest = ''] = /^([+-]?)([\s\S]*)$/.exec(bare) ?? [];
  const { own, digits } = stripPrefix(rest, base);
  const isDigits = /^[0-9a-z]+(?:_[0-9a-z]+)*$/i.test(digits);
  const plain = digits.replaceAll('_', '').toLowerCase();
  const isWithin = Array.from(plain).every((digit) => Number.parseInt(digit, 36) < own);
  const isOctal = base === 0 && own === 10 && /^0+[1-9]/.test(plain);
  if (!isDigits || !isWithin || isOctal) {
    throw valueError(`invalid literal for int() with base ${base}: ${repr(text)}`);
  }
  if (plain.length > 4300 && ![2, 4, 8, 16, 32].includes(own)) {
    throw valueError('Exceeds the limit (4300 digits) for integer string conversion');
  }
  requireBits(plain.length * 6);
  const value = parseDigits(plain, own);
  return sign === '-' ? normalizeInteger(-value) : normalizeInteger(value);
}

function stripPrefix(text: string, base: number): { own: number; digits: string } {
  for (const [known, prefix] of Object.entries(PREFIXES)) {
    if ((base === 0 || base === Number(known)) && prefix.test(text)) {
      return { own: Number(known), digits: text.replace(prefix, '') };
    }
  }
  return { own: base === 0 ? 10 : base, digits: text };
}

function parseDigits(digits: string, base: number): bigint {
  if (base === 10) return BigInt(digits);
  let value = 0n;
  for (const digit of digits) value = value * BigInt(base) + BigInt(Number.parseInt(digit, 36));
  return value;
}

const FLOAT =
  /^[+-]?(?:(?:\d+(?:_\d+)*\.?(?:\d+(?:_\d+)*)?|\.\d+(?:_\d+)*)(?:e[+-]?\d+(?:_\d+)*)?|inf(?:inity)?|nan)$/i;

/** float(text). Throws ValueError. */
export function readFloat(text: string): number {
  spendText(text.length);
  const bare = toAsciiDigits(text.replace(BLANKS, ''));
  if (!FLOAT.test(bare)) throw valueError(`could not convert string to float: ${repr(text)}`);
  if (/nan$/i.test(bare)) return Number.NaN;
  if (/inf/i.test(bare)) return bare.startsWith('-') ? -Infinity : Infinity;
  return Number(bare.replaceAll('_', ''));
}

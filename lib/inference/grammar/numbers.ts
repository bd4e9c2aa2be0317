// Numbers between bounds as digits. All compared values are exact decimals.
import { required } from '../../runtime/required.js';
import type { Description, Node } from './description.js';

/** Bounds of a number. */
export interface Bounds {
  readonly min: number | null;
  readonly max: number | null;
  readonly isAboveMin: boolean;
  readonly isBelowMax: boolean;
}

/** Digits of a number without bounds: doubles hold each number of so many digits exactly. */
const DIGITS = 15;
const LARGEST = 10n ** BigInt(DIGITS) - 1n;
/** Largest divisor of multipleOf, after removal of factors of ten. */
export const MAX_DIVISOR = 2000;

const digit = (to: Description, first = 0, last = 9): Node => to.bytes([0x30 + first, 0x30 + last]);
const digits = (to: Description, min: number, max: number): Node => to.repeat(digit(to), min, max);

/** An integer without a bound. */
export function anyInteger(to: Description): Node {
  const natural = to.any(to.text('0'), to.seq(digit(to, 1), digits(to, 0, DIGITS - 1)));
  return to.seq(to.optional(to.text('-')), natural);
}

/** A number without a bound, possibly with an exponent. */
export function anyNumber(to: Description): Node {
  const fraction = to.seq(to.text('.'), digits(to, 1, DIGITS));
  const sign = to.optional(to.bytes([0x2b, 0x2b], [0x2d, 0x2d]));
  const exponent = to.seq(to.bytes([0x45, 0x45], [0x65, 0x65]), sign, digits(to, 1, 2));
  return to.seq(anyInteger(to), to.optional(fraction), to.optional(exponent));
}

/** The next double above. */
function above(x: number): number {
  if (Math.abs(x) < 2 ** 53) return Math.floor(x) + 1;
  const words = new BigInt64Array(new Float64Array([x]).buffer);
  words[0] = required(words[0]) + (x > 0 ? 1n : -1n);
  return required(new Float64Array(words.buffer)[0]);
}

/** Integers within bounds; with `divisor`, its multiples. */
export function integer(to: Description, bounds: Bounds, divisor: number | null): Node {
  const { min, max, isAboveMin, isBelowMax } = bounds;
  const low = min === null ? null : BigInt(isAboveMin ? above(min) : Math.ceil(min));
  const high = max === null ? null : BigInt(isBelowMax ? -above(-max) : Math.floor(max));
  const from = low ?? (high !== null && high < -LARGEST ? high * 10n : -LARGEST);
  const until = high ?? (low !== null && low > LARGEST ? low * 10n : LARGEST);
  const range = low === null && high === null ? anyInteger(to) : between(to, from, until);
  return divisor === null ? range : to.all(range, multiples(to, divisor));
}

/** Integers from `low` to `high`, without a minus before 0. */
function between(to: Description, low: bigint, high: bigint): Node {
  if (low > high) return to.empty;
  const parts: Node[] = [];
  if (low < 0n) {
    const nearest = high < 0n ? -high : 1n;
    parts.push(to.seq(to.text('-'), naturals(to, nearest, -low)));
  }
  if (high >= 0n) parts.push(naturals(to, low > 0n ? low : 0n, high));
  return to.any(...parts);
}

/** Naturals from `low` to `high`, by their lengths. */
function naturals(to: Description, low: bigint, high: bigint): Node {
  const parts: Node[] = [];
  for (let length = `${low}`.length; length <= `${high}`.length; ++length) {
    const smallest = length === 1 ? 0n : 10n ** BigInt(length - 1);
    const largest = 10n ** BigInt(length) - 1n;
    const from = low > smallest ? low : smallest;
    const until = high < largest ? high : largest;
    if (from <= until) parts.push(sameLength(to, `${from}`, `${until}`));
  }
  return to.any(...parts);
}

/** Digit strings between two of one length. */
function sameLength(to: Description, low: string, high: string): Node {
  if (/^0*$/.test(low) && /^9*$/.test(high)) return digits(to, low.length, low.length);
  const [first, last] = [Number(low[0]), Number(high[0])];
  const rest = low.length - 1;
  const [lows, highs] = [low.slice(1), high.slice(1)];
  if (first === last) return to.seq(digit(to, first, first), sameLength(to, lows, highs));
  const parts = [
    to.seq(digit(to, first, first), sameLength(to, lows, '9'.repeat(rest))),
    to.seq(digit(to, last, last), sameLength(to, '0'.repeat(rest), highs)),
  ];
  if (first + 1 <= last - 1) {
    parts.push(to.seq(digit(to, first + 1, last - 1), digits(to, rest, rest)));
  }
  return to.any(...parts);
}

/** Integers that `divisor` divides: an automaton over the remainders. */
function multiples(to: Description, divisor: number): Node {
  let core = divisor;
  let zeros = 0;
  for (; core % 10 === 0 && core > MAX_DIVISOR; core /= 10) zeros++;
  const rules = Array.from({ length: core }, () => to.rule());
  for (const [remainder, rule] of rules.entries()) {
    const steps = Array.from({ length: 10 }, (_, d) =>
      to.seq(digit(to, d, d), to.ref(required(rules[(10 * remainder + d) % core]))),
    );
    to.define(rule, to.any(...steps, remainder === 0 ? to.epsilon : to.empty));
  }
  const starts = Array.from({ length: 9 }, (_, i) =>
    to.seq(digit(to, i + 1, i + 1), to.ref(required(rules[(i + 1) % core]))),
  );
  const whole = to.seq(to.any(...starts), to.text('0'.repeat(zeros)));
  return to.seq(to.optional(to.text('-')), to.any(to.text('0'), whole));
}

/** True if multiples() can express the divisor. */
export function isDivisor(divisor: number): boolean {
  let core = divisor;
  while (core % 10 === 0 && core > MAX_DIVISOR) core /= 10;
  return Number.isSafeInteger(divisor) && divisor > 0 && core <= MAX_DIVISOR;
}

/** A nonnegative decimal: its whole part, and its fraction without zeros at the end. */
interface Decimal {
  readonly whole: bigint;
  readonly fraction: string;
}

function decimal(x: number): Decimal {
  const [mantissa = '', exponent = '0'] = x.toExponential().split('e');
  const [lead = '0', rest = ''] = mantissa.split('.');
  const all = lead + rest;
  const point = 1 + Number(exponent);
  const padded = point > 0 ? all.padEnd(point, '0') : '0'.repeat(1 - point) + all;
  const at = Math.max(1, point);
  return { whole: BigInt(padded.slice(0, at)), fraction: padded.slice(at).replace(/0+$/, '') };
}

/** Numbers within bounds, without exponents. */
export function decimals(to: Description, bounds: Bounds): Node {
  const { min, max, isAboveMin, isBelowMax } = bounds;
  const isExclusive = (min !== null && isAboveMin) || (max !== null && isBelowMax);
  const lengths = [min, max].map((item) => `${decimal(Math.abs(item ?? 0)).whole}`.length);
  // An exclusive bound compares exactly if doubles hold every number near it.
  const places = isExclusive ? Math.max(0, DIGITS - Math.max(...lengths)) : DIGITS;
  if (places === 0) return integer(to, bounds, null);
  const parts: Node[] = [];
  if (max === null || max > 0 || (max === 0 && !isBelowMax)) {
    const low = min !== null && min >= 0 ? min : 0;
    const isAbove = min !== null && min >= 0 && isAboveMin;
    parts.push(magnitude(to, { low, isAbove, high: max, isBelow: isBelowMax }, places));
  }
  if (min === null || min < 0) {
    const isNegative = max !== null && max <= 0;
    const side = {
      low: isNegative ? -max : 0,
      isAbove: isNegative && isBelowMax,
      high: min === null ? null : -min,
      isBelow: isAboveMin,
    };
    parts.push(to.seq(to.text('-'), magnitude(to, side, places)));
  }
  return to.any(...parts);
}

interface Side {
  low: number;
  isAbove: boolean;
  high: number | null;
  isBelow: boolean;
}

/** Nonnegative decimals within bounds, with at most `places` digits after the point. */
function magnitude(to: Description, side: Side, places: number): Node {
  const any = to.optional(to.seq(to.text('.'), digits(to, 1, places)));
  const low = decimal(side.low);
  const high = side.high === null ? null : decimal(side.high);
  const largest = high ? high.whole : low.whole > LARGEST ? low.whole * 10n : LARGEST;
  const from = [
    to.seq(between(to, low.whole + 1n, largest), any),
    to.seq(to.text(`${low.whole}`), fractionFrom(to, low.fraction, side.isAbove, places)),
  ];
  if (!high) return to.any(...from);
  const until = [
    high.whole > 0n ? to.seq(between(to, 0n, high.whole - 1n), any) : to.empty,
    to.seq(to.text(`${high.whole}`), fractionUntil(to, high.fraction, side.isBelow, places)),
  ];
  return to.all(to.any(...from), to.any(...until));
}

/** Fractions of at least `bound`; the empty text is 0. */
function fractionFrom(to: Description, bound: string, isAbove: boolean, places: number): Node {
  const some = to.seq(to.text('.'), digits(to, 1, places));
  const positive = to.seq(digits(to, 0, places), digit(to, 1), digits(to, 0, places));
  const limit = (part: Node): Node => to.all(to.seq(to.text('.'), part), some);
  if (bound === '') return isAbove ? limit(positive) : to.optional(some);
  const parts: Node[] = [];
  for (const [i, letter] of [...bound].entries()) {
    const own = Number(letter);
    if (own === 9) continue;
    parts.push(to.seq(to.text(bound.slice(0, i)), digit(to, own + 1), digits(to, 0, places)));
  }
  parts.push(to.seq(to.text(bound), isAbove ? positive : digits(to, 0, places)));
  return limit(to.any(...parts));
}

/** Fractions of at most `bound`. */
function fractionUntil(to: Description, bound: string, isBelow: boolean, places: number): Node {
  const some = to.seq(to.text('.'), digits(to, 1, places));
  const zeros = to.repeat(digit(to, 0, 0), 1, places);
  if (bound === '') return isBelow ? to.empty : to.optional(to.seq(to.text('.'), zeros));
  const parts: Node[] = [];
  for (const [i, letter] of [...bound].entries()) {
    const own = Number(letter);
    const head = to.text(bound.slice(0, i));
    if (own > 0) parts.push(to.seq(head, digit(to, 0, own - 1), digits(to, 0, places)));
    if (i > 0) parts.push(head);
  }
  if (!isBelow) parts.push(to.seq(to.text(bound), to.repeat(digit(to, 0, 0), 0, places)));
  return to.optional(to.all(to.seq(to.text('.'), to.any(...parts)), some));
}

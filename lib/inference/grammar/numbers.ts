// Builds nodes for decimal numbers within bounds. Values are compared as exact decimals.
import { required } from '../../runtime/required.js';
import type { GrammarBuilder, Node } from './description.js';

/** Bounds of a number. */
export interface Bounds {
  readonly min: number | null;
  readonly max: number | null;
  readonly isAboveMin: boolean;
  readonly isBelowMax: boolean;
}

/** Maximum digits of an unbounded number: doubles represent all such numbers exactly. */
const DIGITS = 15;
const LARGEST = 10n ** BigInt(DIGITS) - 1n;
/** Maximum divisor of multipleOf, without factors of ten. */
export const MAX_DIVISOR = 2000;

const digitNode = (to: GrammarBuilder, first = 0, last = 9): Node =>
  to.bytes([0x30 + first, 0x30 + last]);
const digitsNode = (to: GrammarBuilder, min: number, max: number): Node =>
  to.repeat(digitNode(to), min, max);

/** Returns a node that matches an integer of at most DIGITS digits. */
function anyIntegerNode(to: GrammarBuilder): Node {
  const natural = to.any(to.text('0'), to.seq(digitNode(to, 1), digitsNode(to, 0, DIGITS - 1)));
  return to.seq(to.optional(to.text('-')), natural);
}

/** Returns a node that matches any number, optionally with an exponent. */
export function anyNumberNode(to: GrammarBuilder): Node {
  const fraction = to.seq(to.text('.'), digitsNode(to, 1, DIGITS));
  const sign = to.optional(to.bytes([0x2b, 0x2b], [0x2d, 0x2d]));
  const exponent = to.seq(to.bytes([0x45, 0x45], [0x65, 0x65]), sign, digitsNode(to, 1, 2));
  return to.seq(anyIntegerNode(to), to.optional(fraction), to.optional(exponent));
}

/** Returns the smallest integer above `x` that a double can represent. */
function nextDouble(x: number): number {
  if (Math.abs(x) < 2 ** 53) return Math.floor(x) + 1;
  const words = new BigInt64Array(new Float64Array([x]).buffer);
  words[0] = required(words[0]) + (x > 0 ? 1n : -1n);
  return required(new Float64Array(words.buffer)[0]);
}

/** Returns a node that matches the integers within bounds that `divisor` divides; null: all. */
export function integerNode(to: GrammarBuilder, bounds: Bounds, divisor: number | null): Node {
  const { min, max, isAboveMin, isBelowMax } = bounds;
  const low = min === null ? null : BigInt(isAboveMin ? nextDouble(min) : Math.ceil(min));
  const high = max === null ? null : BigInt(isBelowMax ? -nextDouble(-max) : Math.floor(max));
  const from = low ?? (high !== null && high < -LARGEST ? high * 10n : -LARGEST);
  const until = high ?? (low !== null && low > LARGEST ? low * 10n : LARGEST);
  const range =
    low === null && high === null ? anyIntegerNode(to) : integersBetween(to, from, until);
  return divisor === null ? range : to.all(range, multiplesNode(to, divisor));
}

/** Returns a node that matches the integers from `low` to `high`, without "-0". */
function integersBetween(to: GrammarBuilder, low: bigint, high: bigint): Node {
  if (low > high) return to.empty;
  const parts: Node[] = [];
  if (low < 0n) {
    const nearest = high < 0n ? -high : 1n;
    parts.push(to.seq(to.text('-'), naturalsBetween(to, nearest, -low)));
  }
  if (high >= 0n) parts.push(naturalsBetween(to, low > 0n ? low : 0n, high));
  return to.any(...parts);
}

/** Returns a node that matches the natural numbers from `low` to `high`, grouped by length. */
function naturalsBetween(to: GrammarBuilder, low: bigint, high: bigint): Node {
  const parts: Node[] = [];
  for (let length = `${low}`.length; length <= `${high}`.length; ++length) {
    const smallest = length === 1 ? 0n : 10n ** BigInt(length - 1);
    const largest = 10n ** BigInt(length) - 1n;
    const from = low > smallest ? low : smallest;
    const until = high < largest ? high : largest;
    if (from <= until) parts.push(digitsBetween(to, `${from}`, `${until}`));
  }
  return to.any(...parts);
}

/** Returns a node that matches the digit strings from `low` to `high`, which have equal lengths. */
function digitsBetween(to: GrammarBuilder, low: string, high: string): Node {
  if (/^0*$/.test(low) && /^9*$/.test(high)) return digitsNode(to, low.length, low.length);
  const [first, last] = [Number(low[0]), Number(high[0])];
  const tailLength = low.length - 1;
  const [lows, highs] = [low.slice(1), high.slice(1)];
  if (first === last) return to.seq(digitNode(to, first, first), digitsBetween(to, lows, highs));
  const parts = [
    to.seq(digitNode(to, first, first), digitsBetween(to, lows, '9'.repeat(tailLength))),
    to.seq(digitNode(to, last, last), digitsBetween(to, '0'.repeat(tailLength), highs)),
  ];
  if (first + 1 <= last - 1) {
    parts.push(to.seq(digitNode(to, first + 1, last - 1), digitsNode(to, tailLength, tailLength)));
  }
  return to.any(...parts);
}

/**
 * Returns a node that matches the multiples of `divisor`: an automaton over the remainders. Factors
 * of ten only append zeros, so they need no states.
 */
function multiplesNode(to: GrammarBuilder, divisor: number): Node {
  let core = divisor;
  let zeros = 0;
  for (; core % 10 === 0 && core > MAX_DIVISOR; core /= 10) zeros++;
  const rules = Array.from({ length: core }, () => to.rule());
  for (const [remainder, rule] of rules.entries()) {
    const steps = Array.from({ length: 10 }, (_, d) =>
      to.seq(digitNode(to, d, d), to.ref(required(rules[(10 * remainder + d) % core]))),
    );
    to.define(rule, to.any(...steps, remainder === 0 ? to.epsilon : to.empty));
  }
  const starts = Array.from({ length: 9 }, (_, i) =>
    to.seq(digitNode(to, i + 1, i + 1), to.ref(required(rules[(i + 1) % core]))),
  );
  const multiple = to.seq(to.any(...starts), to.text('0'.repeat(zeros)));
  return to.seq(to.optional(to.text('-')), to.any(to.text('0'), multiple));
}

/** Returns whether multiplesNode() supports the divisor. */
export function isDivisor(divisor: number): boolean {
  let core = divisor;
  while (core % 10 === 0 && core > MAX_DIVISOR) core /= 10;
  return Number.isSafeInteger(divisor) && divisor > 0 && core <= MAX_DIVISOR;
}

/** A nonnegative decimal: integer part, and fraction digits without trailing zeros. */
interface Decimal {
  readonly whole: bigint;
  readonly fraction: string;
}

function toDecimal(x: number): Decimal {
  const [mantissa = '', exponent = '0'] = x.toExponential().split('e');
  const [lead = '0', rest = ''] = mantissa.split('.');
  const all = lead + rest;
  const point = 1 + Number(exponent);
  const padded = point > 0 ? all.padEnd(point, '0') : '0'.repeat(1 - point) + all;
  const at = Math.max(1, point);
  return { whole: BigInt(padded.slice(0, at)), fraction: padded.slice(at).replace(/0+$/, '') };
}

/** Returns a node that matches the numbers within bounds, without exponents. */
export function decimalsNode(to: GrammarBuilder, bounds: Bounds): Node {
  const { min, max, isAboveMin, isBelowMax } = bounds;
  const isExclusive = (min !== null && isAboveMin) || (max !== null && isBelowMax);
  const lengths = [min, max].map((item) => `${toDecimal(Math.abs(item ?? 0)).whole}`.length);
  // An exclusive bound is exact if doubles represent all numbers near it.
  const places = isExclusive ? Math.max(0, DIGITS - Math.max(...lengths)) : DIGITS;
  if (places === 0) return integerNode(to, bounds, null);
  const parts: Node[] = [];
  if (max === null || max > 0 || (max === 0 && !isBelowMax)) {
    const low = min !== null && min >= 0 ? min : 0;
    const isAbove = min !== null && min >= 0 && isAboveMin;
    parts.push(magnitudeNode(to, { low, isAbove, high: max, isBelow: isBelowMax }, places));
  }
  if (min === null || min < 0) {
    const isNegative = max !== null && max <= 0;
    const side = {
      low: isNegative ? -max : 0,
      isAbove: isNegative && isBelowMax,
      high: min === null ? null : -min,
      isBelow: isAboveMin,
    };
    parts.push(to.seq(to.text('-'), magnitudeNode(to, side, places)));
  }
  return to.any(...parts);
}

/** Bounds of the absolute values of numbers with one sign. */
interface SideBounds {
  low: number;
  isAbove: boolean;
  high: number | null;
  isBelow: boolean;
}

/**
 * Returns a node that matches nonnegative decimals within bounds, with at most `places` digits
 * after the point.
 */
function magnitudeNode(to: GrammarBuilder, side: SideBounds, places: number): Node {
  const any = to.optional(to.seq(to.text('.'), digitsNode(to, 1, places)));
  const low = toDecimal(side.low);
  const high = side.high === null ? null : toDecimal(side.high);
  const largest = high ? high.whole : low.whole > LARGEST ? low.whole * 10n : LARGEST;
  const from = [
    to.seq(integersBetween(to, low.whole + 1n, largest), any),
    to.seq(to.text(`${low.whole}`), fractionFrom(to, low.fraction, side.isAbove, places)),
  ];
  if (!high) return to.any(...from);
  const until = [
    high.whole > 0n ? to.seq(integersBetween(to, 0n, high.whole - 1n), any) : to.empty,
    to.seq(to.text(`${high.whole}`), fractionUntil(to, high.fraction, side.isBelow, places)),
  ];
  return to.all(to.any(...from), to.any(...until));
}

/** Returns a node that matches fractions of at least `bound`; the empty text is 0. */
function fractionFrom(to: GrammarBuilder, bound: string, isAbove: boolean, places: number): Node {
  const some = to.seq(to.text('.'), digitsNode(to, 1, places));
  const positive = to.seq(digitsNode(to, 0, places), digitNode(to, 1), digitsNode(to, 0, places));
  const limit = (part: Node): Node => to.all(to.seq(to.text('.'), part), some);
  if (bound === '') return isAbove ? limit(positive) : to.optional(some);
  const parts: Node[] = [];
  for (const [i, letter] of [...bound].entries()) {
    const digitValue = Number(letter);
    if (digitValue === 9) continue;
    parts.push(
      to.seq(to.text(bound.slice(0, i)), digitNode(to, digitValue + 1), digitsNode(to, 0, places)),
    );
  }
  parts.push(to.seq(to.text(bound), isAbove ? positive : digitsNode(to, 0, places)));
  return limit(to.any(...parts));
}

/** Returns a node that matches fractions of at most `bound`. */
function fractionUntil(to: GrammarBuilder, bound: string, isBelow: boolean, places: number): Node {
  const some = to.seq(to.text('.'), digitsNode(to, 1, places));
  const zeros = to.repeat(digitNode(to, 0, 0), 1, places);
  if (bound === '') return isBelow ? to.empty : to.optional(to.seq(to.text('.'), zeros));
  const parts: Node[] = [];
  for (const [i, letter] of [...bound].entries()) {
    const digitValue = Number(letter);
    const head = to.text(bound.slice(0, i));
    if (digitValue > 0)
      parts.push(to.seq(head, digitNode(to, 0, digitValue - 1), digitsNode(to, 0, places)));
    if (i > 0) parts.push(head);
  }
  if (!isBelow) parts.push(to.seq(to.text(bound), to.repeat(digitNode(to, 0, 0), 0, places)));
  return to.optional(to.all(to.seq(to.text('.'), to.any(...parts)), some));
}

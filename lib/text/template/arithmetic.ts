// Python's operators on numbers, texts and lists: arithmetic, equality and order.

import { defined, required } from '../../runtime/required.js';
import { escapeHtml } from './escape.js';
import {
  requireBits,
  requireBounded,
  requireText,
  runDeeper,
  spend,
  spendText,
  TemplateFault,
  typeError,
} from './fault.js';
import { type Integer, isNumber, toFloatOrNull } from './numbers.js';
import { percentFormat, percentMarkup } from './percent-format.js';
import { compareTexts } from './unicode.js';
import {
  Dict,
  DONE,
  Float,
  hashKey,
  isList,
  Markup,
  MISSING,
  normalizeInteger,
  PySet,
  Range,
  startIteration,
  Tuple,
  toIntegerOrNull,
  toList,
  toTextOrNull,
  typeName,
  Undefined,
  type Value,
  View,
} from './values.js';

/** The operand types do not support the operator. */
function unsupportedError(operator: string, a: Value, b: Value): Error {
  if (a instanceof Undefined) return a.fault();
  if (b instanceof Undefined) return b.fault();
  const types = `'${typeName(a)}' and '${typeName(b)}'`;
  return typeError(`unsupported operand type(s) for ${operator}: ${types}`);
}

/** An operator on two integers or two floats. */
interface NumericOperator {
  readonly sign: string;
  small(a: number, b: number): number;
  large(a: bigint, b: bigint): bigint;
  float(a: number, b: number): number;
}

function applyNumeric(operator: NumericOperator, a: Value, b: Value): Value | null {
  const [one, other] = [toIntegerOrNull(a), toIntegerOrNull(b)];
  if (one !== null && other !== null) {
    if (typeof one === 'number' && typeof other === 'number') {
      const result = operator.small(one, other);
      if (Number.isSafeInteger(result)) return result + 0;
    }
    return normalizeInteger(operator.large(BigInt(one), BigInt(other)));
  }
  if (!isNumber(a) || !isNumber(b)) return null;
  return new Float(operator.float(required(toFloatOrNull(a)), required(toFloatOrNull(b))));
}

const ADD: NumericOperator = {
  sign: '+',
  small: (a, b) => a + b,
  large: (a, b) => a + b,
  float: (a, b) => a + b,
};
const SUBTRACT: NumericOperator = {
  sign: '-',
  small: (a, b) => a - b,
  large: (a, b) => a - b,
  float: (a, b) => a - b,
};
const MULTIPLY: NumericOperator = {
  sign: '*',
  small: (a, b) => a * b,
  large: (a, b) => {
    requireBits(bitLengthBound(a) + bitLengthBound(b));
    return a * b;
  },
  float: (a, b) => a * b,
};
const FLOOR: NumericOperator = {
  sign: '//',
  small: (a, b) => (a - floorModulo(a, requireDivisor(b))) / b,
  large: (a, b) => (a - largeModulo(a, b)) / b,
  float: floorDivide,
};
const MODULO: NumericOperator = {
  sign: '%',
  small: (a, b) => floorModulo(a, requireDivisor(b, 'integer modulo by zero')),
  large: largeModulo,
  float: (a, b) => floorModulo(a, requireDivisor(b, 'float modulo')),
};

const bitLengthBound = (value: bigint): number => value.toString(16).length * 4;

function requireDivisor(b: number, message = 'division by zero'): number {
  if (b === 0) throw new TemplateFault('ZeroDivisionError', message);
  return b;
}

/** Returns the remainder with the sign of the divisor, as Python does. */
function floorModulo(a: number, b: number): number {
  const rest = a % b;
  if (rest === 0) return b < 0 ? -0 : 0;
  return rest < 0 !== b < 0 ? rest + b : rest;
}

function largeModulo(a: bigint, b: bigint): bigint {
  if (b === 0n) requireDivisor(0);
  const rest = a % b;
  return rest !== 0n && rest < 0n !== b < 0n ? rest + b : rest;
}

/** Divides and rounds down, as CPython does. */
function floorDivide(a: number, b: number): number {
  requireDivisor(b, 'float floor division by zero');
  const rest = a % b;
  let quotient = (a - rest) / b;
  if (rest !== 0 && b < 0 !== rest < 0) quotient -= 1;
  if (quotient === 0) return Object.is(Math.sign(a / b), -0) || a / b < 0 ? -0 : 0;
  const floor = Math.floor(quotient);
  return quotient - floor > 0.5 ? floor + 1 : floor;
}

/** a + b. */
export function add(a: Value, b: Value): Value {
  if (typeof a === 'string' && typeof b === 'string') return concatenateTexts(a, b);
  const number = applyNumeric(ADD, a, b);
  if (number !== null) return number;
  const [left, right] = [toTextOrNull(a), toTextOrNull(b)];
  if (left !== null && right !== null) return new Markup(escapeToText(a) + escapeToText(b));
  if (isList(a) && isList(b)) {
    spend(a.length + b.length);
    return [...a, ...b];
  }
  if (a instanceof Tuple && b instanceof Tuple) {
    spend(a.items.length + b.items.length);
    return new Tuple([...a.items, ...b.items]);
  }
  if (b instanceof Undefined || a instanceof Undefined) throw unsupportedError('+', a, b);
  for (const type of ['str', 'list', 'tuple']) {
    if (typeName(a) !== type) continue;
    throw typeError(`can only concatenate ${type} (not "${typeName(b)}") to ${type}`);
  }
  throw unsupportedError('+', a, b);
}

/**
 * Joins texts. The cost is the length of the shorter text, because JavaScript refers to the longer
 * one.
 */
function concatenateTexts(a: string, b: string): string {
  spendText(Math.min(a.length, b.length));
  return requireBounded(a + b);
}

const escapeToText = (value: Value): string =>
  value instanceof Markup ? value.text : escapeHtml(value as string);

export function subtract(a: Value, b: Value): Value {
  const number = applyNumeric(SUBTRACT, a, b);
  if (number !== null) return number;
  // A dict view accepts any iterable as the other operand; a set accepts only sets.
  const isView = isSetLike(a) ? a instanceof View : b instanceof View;
  const areSets = isSetLike(a) && isSetLike(b);
  const isKnown = areSets || (isView && (isSetLike(a) || isSetLike(b)));
  if (!isKnown || a instanceof Undefined) throw unsupportedError('-', a, b);
  const removed = toKeys(toList(b));
  return new PySet(toKeys(toList(a).filter((item) => !removed.has(item))));
}

const toKeys = (items: readonly Value[]): Dict => Dict.of(items.map((item) => [item, null]));

/** Returns whether a value compares like a set. */
const isSetLike = (value: Value): value is PySet | View =>
  value instanceof PySet || (value instanceof View && value.kind !== 'values');

const setSize = (value: PySet | View): number =>
  value instanceof View ? value.dict.size : value.length;

/** Returns whether all items of a set are in another set. */
function isWithin(a: PySet | View, b: PySet | View): boolean {
  if (setSize(a) > setSize(b)) return false;
  return toList(a).every((item) => {
    spend();
    return contains(b, item);
  });
}

/** a * b: numbers, and sequences with an integer. */
export function multiply(a: Value, b: Value): Value {
  const number = applyNumeric(MULTIPLY, a, b);
  if (number !== null) return number;
  if (a instanceof Undefined || b instanceof Undefined) throw unsupportedError('*', a, b);
  const repetition = repeat(a, b) ?? repeat(b, a);
  if (repetition !== null) return repetition;
  const isSequence = (value: Value): boolean =>
    toTextOrNull(value) !== null || isList(value) || value instanceof Tuple;
  if (!isSequence(a) && !isSequence(b)) throw unsupportedError('*', a, b);
  const other = isSequence(a) ? b : a;
  throw typeError(`can't multiply sequence by non-int of type '${typeName(other)}'`);
}

function repeat(sequence: Value, count: Value): Value | null {
  const integer = toIntegerOrNull(count);
  if (integer === null) return null;
  const times = Math.max(0, Number(integer));
  const text = toTextOrNull(sequence);
  if (text !== null) {
    requireText(text.length * times);
    spendText(text.length * times);
    const whole = text === '' ? '' : text.repeat(times);
    return sequence instanceof Markup ? new Markup(whole) : whole;
  }
  const items = sequence instanceof Tuple ? sequence.items : sequence;
  if (!isList(items as Value)) return null;
  const list = items as readonly Value[];
  spend(list.length * times);
  const whole: Value[] = [];
  for (let i = 0; list.length > 0 && i < times; ++i) whole.push(...list);
  return sequence instanceof Tuple ? new Tuple(whole) : whole;
}

export function divide(a: Value, b: Value): Value {
  if (!isNumber(a) || !isNumber(b)) throw unsupportedError('/', a, b);
  const [one, other] = [toIntegerOrNull(a), toIntegerOrNull(b)];
  if (one !== null && other !== null) {
    requireDivisor(Number(other));
    return new Float(divideIntegers(one, other));
  }
  const divisor = requireDivisor(required(toFloatOrNull(b)), 'float division by zero');
  return new Float(required(toFloatOrNull(a)) / divisor);
}

/** Returns the float that is nearest to the quotient of two integers of any size. */
function divideIntegers(a: Integer, b: Integer): number {
  if (typeof a === 'number' && typeof b === 'number') return a / b;
  const [dividend, other] = [BigInt(a), BigInt(b)];
  const isNegative = dividend < 0n !== other < 0n;
  const [top, bottom] = [dividend < 0n ? -dividend : dividend, other < 0n ? -other : other];
  // 66 bits of the quotient, plus a sticky bit for the remainder, round like the exact quotient.
  const shift = BigInt(bitLengthBound(bottom) - bitLengthBound(top) + 70);
  const [scaledTop, scaledBottom] = shift > 0n ? [top << shift, bottom] : [top, bottom << -shift];
  const rest = scaledTop % scaledBottom === 0n ? 0n : 1n;
  const scaled = Number(((scaledTop / scaledBottom) << 1n) | rest);
  const quotient = scaled * 2 ** (-Number(shift) - 1);
  if (!Number.isFinite(quotient)) {
    throw new TemplateFault('OverflowError', 'integer division result too large for a float');
  }
  return isNegative ? -quotient : quotient;
}

export function floorDivision(a: Value, b: Value): Value {
  const number = applyNumeric(FLOOR, a, b);
  if (number !== null) return number;
  throw unsupportedError('//', a, b);
}

/** a % b: numbers, and texts with their values. */
export function remainder(a: Value, b: Value): Value {
  const number = applyNumeric(MODULO, a, b);
  if (number !== null) return number;
  if (typeof a === 'string') return percentFormat(a, b);
  if (a instanceof Markup) return percentMarkup(a.text, b);
  throw unsupportedError('%', a, b);
}

/** a ** b. */
export function power(a: Value, b: Value): Value {
  const [base, exponent] = [toIntegerOrNull(a), toIntegerOrNull(b)];
  if (base !== null && exponent !== null && exponent >= 0) return integerPower(base, exponent);
  if (!isNumber(a) || !isNumber(b)) throw unsupportedError('** or pow()', a, b);
  const [x, y] = [required(toFloatOrNull(a)), required(toFloatOrNull(b))];
  if (x === 0 && y < 0) {
    const message = '0.0 cannot be raised to a negative power';
    throw new TemplateFault('ZeroDivisionError', message);
  }
  if (x < 0 && Number.isFinite(x) && Number.isFinite(y) && !Number.isInteger(y)) {
    throw typeError('complex numbers are not supported');
  }
  const isOne = x === 1 || (x === -1 && !Number.isFinite(y));
  const one = Number.isNaN(y) ? 1 : Math.abs(x);
  const result = isOne ? one : floatPower(x, y);
  if (!Number.isFinite(result) && Number.isFinite(x) && Number.isFinite(y)) {
    throw new TemplateFault('OverflowError', "(34, 'Numerical result out of range')");
  }
  return new Float(result);
}

/** Largest integer exponent of an exact power. */
const EXACT_EXPONENT = 32;

/**
 * Returns x ** y rounded as C's library does; JavaScript's operator may be off by the last digit.
 * Powers with small integer exponents are computed exactly and rounded once.
 */
function floatPower(x: number, y: number): number {
  const rounded = x ** y;
  if (y === 0.5 && x > 0) return Math.sqrt(x);
  const size = Math.abs(rounded);
  // Beyond these sizes the result would be rounded twice, or is not finite.
  const isPlain = Number.isInteger(y) && Math.abs(y) <= EXACT_EXPONENT && y !== 0;
  if (!isPlain || !(size > 1e-290 && size < 1e290)) return rounded;
  const [mantissa, exponent] = splitFloat(x);
  const power = BigInt(Math.abs(y));
  const [whole, shift] = [mantissa ** power, BigInt(exponent) * power];
  const [top, bottom] = shift < 0n ? [whole, 1n << -shift] : [whole << shift, 1n];
  return y > 0 ? divideIntegers(top, bottom) : divideIntegers(bottom, top);
}

/**
 * Returns the mantissa and the exponent of 2 with the product `x`, which must be finite and not
 * subnormal.
 */
function splitFloat(x: number): [mantissa: bigint, exponent: number] {
  const bits = new DataView(new ArrayBuffer(8));
  bits.setFloat64(0, x);
  const exponent = ((bits.getUint16(0) >> 4) & 0x7ff) - 1075;
  return [BigInt(x / 2 ** exponent), exponent];
}

function integerPower(base: Integer, exponent: Integer): Value {
  const size =
    typeof base === 'bigint' ? bitLengthBound(base) : Math.log2(Math.max(1, Math.abs(base)));
  if (size > 0) requireBits(size * Number(exponent));
  if (size === 0) {
    if (base === 0) return exponent === 0 ? 1 : 0;
    return base === 1 || BigInt(exponent) % 2n === 0n ? 1 : -1;
  }
  spend(Math.ceil((size * Number(exponent)) / 64));
  return normalizeInteger(BigInt(base) ** BigInt(exponent));
}

/** -a. */
export function negate(a: Value): Value {
  if (a instanceof Float) return new Float(-a.value);
  const integer = toIntegerOrNull(a);
  if (integer !== null)
    return typeof integer === 'number' ? 0 - integer : normalizeInteger(-integer);
  if (a instanceof Undefined) throw a.fault();
  throw typeError(`bad operand type for unary -: '${typeName(a)}'`);
}

/** +a. */
export function positive(a: Value): Value {
  if (a instanceof Float) return a;
  const integer = toIntegerOrNull(a);
  if (integer !== null) return integer;
  if (a instanceof Undefined) throw a.fault();
  throw typeError(`bad operand type for unary +: '${typeName(a)}'`);
}

/** a == b. */
export function isEqual(a: Value, b: Value): boolean {
  if (a === b) return true;
  if (typeof a === 'string' && typeof b === 'string') return false;
  if (isNumber(a)) return isNumber(b) && isSameNumber(a, b);
  const text = toTextOrNull(a);
  if (text !== null) return text === toTextOrNull(b);
  if (a === null || b === null) return false;
  if (a instanceof Undefined) return b instanceof Undefined;
  return runDeeper(() => isSameContent(a, b));
}

const toNumber = (value: Value): Integer =>
  value instanceof Float ? value.value : required(toIntegerOrNull(value));

function isSameNumber(a: Value, b: Value): boolean {
  // JavaScript compares a bigint and a number exactly, as Python compares an int and a float.
  // biome-ignore lint/suspicious/noDoubleEquals: see above.
  return toNumber(a) == toNumber(b);
}

function isSameContent(a: Value, b: Value): boolean {
  if (isList(a)) return isList(b) && isSameList(a, b);
  if (a instanceof Tuple) return b instanceof Tuple && isSameList(a.items, b.items);
  if (a instanceof Dict) return b instanceof Dict && isSameDict(a, b);
  if (a instanceof Range && b instanceof Range) return hashKey(a) === hashKey(b);
  return isSetLike(a) && isSetLike(b) && setSize(a) === setSize(b) && isWithin(a, b);
}

function isSameList(a: readonly Value[], b: readonly Value[]): boolean {
  if (a.length !== b.length) return false;
  return a.every((item, i) => {
    spend();
    return isEqual(item, defined(b[i]));
  });
}

function isSameDict(a: Dict, b: Dict): boolean {
  if (a.size !== b.size) return false;
  return a.entries().every(([key, item]) => {
    spend();
    const other = b.get(key);
    return other !== MISSING && isEqual(item, other);
  });
}

/** The four order operators, as tests of the sign of a difference. */
const ORDERS: Readonly<Record<string, (difference: number) => boolean>> = {
  '<': (difference) => difference < 0,
  '<=': (difference) => difference <= 0,
  '>': (difference) => difference > 0,
  '>=': (difference) => difference >= 0,
};

/** Returns the result of <, <=, > or >=. Throws TypeError. */
export function isOrdered(operator: string, a: Value, b: Value): boolean {
  if (isSetLike(a) && isSetLike(b)) {
    const [inner, outer] = operator.startsWith('<') ? [a, b] : [b, a];
    return (operator.endsWith('=') || setSize(inner) < setSize(outer)) && isWithin(inner, outer);
  }
  const difference = compareValues(operator, a, b);
  return required(ORDERS[operator])(difference);
}

/** Returns NaN if an operand is NaN. */
function compareValues(operator: string, a: Value, b: Value): number {
  if (isNumber(a) && isNumber(b)) {
    const [one, other] = [toNumber(a), toNumber(b)];
    if (Number.isNaN(one) || Number.isNaN(other)) return Number.NaN;
    return one < other ? -1 : one > other ? 1 : 0;
  }
  const [left, right] = [toTextOrNull(a), toTextOrNull(b)];
  if (left !== null && right !== null) return compareTexts(left, right);
  if (isList(a) && isList(b)) return compareLists(operator, a, b);
  if (a instanceof Tuple && b instanceof Tuple) return compareLists(operator, a.items, b.items);
  if (a instanceof Undefined) throw a.fault();
  if (b instanceof Undefined) throw b.fault();
  const types = `'${typeName(a)}' and '${typeName(b)}'`;
  throw typeError(`'${operator}' not supported between instances of ${types}`);
}

function compareLists(operator: string, a: readonly Value[], b: readonly Value[]): number {
  return runDeeper(() => {
    const shorter = Math.min(a.length, b.length);
    for (let i = 0; i < shorter; ++i) {
      spend();
      const [one, other] = [defined(a[i]), defined(b[i])];
      if (!isEqual(one, other)) return compareValues(operator, one, other);
    }
    return a.length - b.length;
  });
}

/** Returns whether two values are the same object. */
export function isSame(a: Value, b: Value): boolean {
  return a === b;
}

/** item in container. Throws TypeError. */
export function contains(container: Value, item: Value): boolean {
  const text = toTextOrNull(container);
  if (text !== null) {
    const part = toTextOrNull(item);
    spendText(text.length);
    if (part !== null) return text.includes(part);
    throw typeError(`'in <string>' requires string as left operand, not ${typeName(item)}`);
  }
  if (container instanceof Dict) return container.has(item);
  if (container instanceof PySet) return container.items.has(item);
  if (container instanceof View && container.kind === 'keys') return container.dict.has(item);
  const next = startIteration(container);
  if (next === null) throw typeError(`argument of type '${typeName(container)}' is not iterable`);
  for (let entry = next(); entry !== DONE; entry = next()) {
    spend();
    if (isEqual(entry, item)) return true;
  }
  return false;
}

/** sorted(). Throws TypeError for items without an order. */
export function sortValues(
  items: readonly Value[],
  keyOf: (item: Value) => Value,
  isReverse: boolean,
): Value[] {
  const keyed = items.map((item) => ({ item, key: keyOf(item) }));
  const compare = (a: Value, b: Value): number => {
    spend();
    if (isOrdered('<', a, b)) return -1;
    return isOrdered('<', b, a) ? 1 : 0;
  };
  keyed.sort((a, b) => (isReverse ? compare(b.key, a.key) : compare(a.key, b.key)));
  return keyed.map(({ item }) => item);
}

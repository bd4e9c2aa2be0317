// Jinja2's tests, for the operator "is".
import { contains, isEqual, isOrdered, isSame, remainder } from './arithmetic.js';
import { str } from './print.js';
import { findLength } from './sequences.js';
import { type Body, type BoundFunction, bindFunction } from './signature.js';
import { isLower, isUpper } from './unicode.js';
import {
  Callable,
  Dict,
  Float,
  Generator,
  Markup,
  Opaque,
  startIteration,
  toIntegerOrNull,
  toTextOrNull,
  Undefined,
  type Value,
  View,
} from './values.js';

const isDefined = (value: Value): boolean => !(value instanceof Undefined);
const isBoolean = (value: Value): boolean => typeof value === 'boolean';
const isInteger = (value: Value): boolean => !isBoolean(value) && toIntegerOrNull(value) !== null;

/** Returns whether a value has a length and an index. Dict views have only a length. */
function isSequence(value: Value): boolean {
  if (value instanceof View || value instanceof Generator) return false;
  return !(value instanceof Opaque) && findLength(value) !== null;
}

const compareBy =
  (operator: string): Body =>
  (a: Value, b: Value) =>
    isOrdered(operator, a, b);

const testEqual: Body = (a: Value, b: Value) => isEqual(a, b);
const testUnequal: Body = (a: Value, b: Value) => !isEqual(a, b);
const hasRemainder = (value: Value, by: Value, expected: number): boolean =>
  isEqual(remainder(value, by), expected);

/** Names of the filters, for the test "filter". list-filters.ts fills the set. */
export const FILTER_NAMES = new Set<string>();

const BODIES: Readonly<Record<string, Body>> = {
  odd: (value: Value) => hasRemainder(value, 2, 1),
  even: (value: Value) => hasRemainder(value, 2, 0),
  defined: isDefined,
  undefined: (value: Value) => !isDefined(value),
  filter: (value: Value) => FILTER_NAMES.has(toName(value)),
  test: (value: Value) => TESTS.has(toName(value)),
  none: (value: Value) => value === null,
  boolean: isBoolean,
  false: (value: Value) => value === false,
  true: (value: Value) => value === true,
  integer: isInteger,
  float: (value: Value) => value instanceof Float,
  lower: (value: Value) => isLower(str(value)),
  upper: (value: Value) => isUpper(str(value)),
  string: (value: Value) => toTextOrNull(value) !== null,
  mapping: (value: Value) => value instanceof Dict,
  number: (value: Value) => value instanceof Float || toIntegerOrNull(value) !== null,
  sequence: isSequence,
  iterable: (value: Value) => startIteration(value) !== null,
  callable: (value: Value) => value instanceof Callable || value instanceof Undefined,
  escaped: (value: Value) => value instanceof Markup,
};

const toName = (value: Value): string => toTextOrNull(value) ?? '';

/** Tests with one argument. */
const BINARY: Readonly<Record<string, Body>> = {
  divisibleby: (value: Value, by: Value) => hasRemainder(value, by, 0),
  sameas: isSame,
  in: (value: Value, container: Value) => contains(container, value),
  '==': testEqual,
  eq: testEqual,
  equalto: testEqual,
  '!=': testUnequal,
  ne: testUnequal,
  '>': compareBy('>'),
  gt: compareBy('>'),
  greaterthan: compareBy('>'),
  '>=': compareBy('>='),
  ge: compareBy('>='),
  '<': compareBy('<'),
  lt: compareBy('<'),
  lessthan: compareBy('<'),
  '<=': compareBy('<='),
  le: compareBy('<='),
};

/** Tests by name. The value is their first argument. */
export const TESTS: ReadonlyMap<string, BoundFunction> = new Map([
  ...Object.entries(BODIES).map(
    ([name, body]) => [name, bindFunction(name, 'value', body)] as const,
  ),
  ...Object.entries(BINARY).map(
    ([name, body]) => [name, bindFunction(name, 'value other', body)] as const,
  ),
]);

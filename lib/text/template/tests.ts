// The tests of jinja2, for the operator "is".
import { contains, isEqual, isOrdered, isSame, remainder } from './arithmetic.js';
import { str } from './print.js';
import { knownLength } from './sequences.js';
import { type Body, type BoundFunction, bind } from './signature.js';
import { isLower, isUpper } from './unicode.js';
import {
  Callable,
  Dict,
  Float,
  Generator,
  integerOf,
  iterationOf,
  Markup,
  Opaque,
  textOf,
  Undefined,
  type Value,
  View,
} from './values.js';

const isDefined = (value: Value): boolean => !(value instanceof Undefined);
const isBoolean = (value: Value): boolean => typeof value === 'boolean';
const isInteger = (value: Value): boolean => !isBoolean(value) && integerOf(value) !== null;

/** Returns whether a value has len() and an index. Views have only len(). */
function isSequence(value: Value): boolean {
  if (value instanceof View || value instanceof Generator) return false;
  return !(value instanceof Opaque) && knownLength(value) !== null;
}

const compareBy =
  (operator: string): Body =>
  (a: Value, b: Value) =>
    isOrdered(operator, a, b);

const equal: Body = (a: Value, b: Value) => isEqual(a, b);
const unequal: Body = (a: Value, b: Value) => !isEqual(a, b);
const rest = (value: Value, by: Value, expected: number): boolean =>
  isEqual(remainder(value, by), expected);

/** The names of filters, for the test "filter". The filters fill it. */
export const FILTER_NAMES = new Set<string>();

const BODIES: Readonly<Record<string, Body>> = {
  odd: (value: Value) => rest(value, 2, 1),
  even: (value: Value) => rest(value, 2, 0),
  defined: isDefined,
  undefined: (value: Value) => !isDefined(value),
  filter: (value: Value) => FILTER_NAMES.has(nameOf(value)),
  test: (value: Value) => TESTS.has(nameOf(value)),
  none: (value: Value) => value === null,
  boolean: isBoolean,
  false: (value: Value) => value === false,
  true: (value: Value) => value === true,
  integer: isInteger,
  float: (value: Value) => value instanceof Float,
  lower: (value: Value) => isLower(str(value)),
  upper: (value: Value) => isUpper(str(value)),
  string: (value: Value) => textOf(value) !== null,
  mapping: (value: Value) => value instanceof Dict,
  number: (value: Value) => value instanceof Float || integerOf(value) !== null,
  sequence: isSequence,
  iterable: (value: Value) => iterationOf(value) !== null,
  callable: (value: Value) => value instanceof Callable || value instanceof Undefined,
  escaped: (value: Value) => value instanceof Markup,
};

const nameOf = (value: Value): string => textOf(value) ?? '';

/** Tests with an argument. */
const BINARY: Readonly<Record<string, Body>> = {
  divisibleby: (value: Value, by: Value) => rest(value, by, 0),
  sameas: isSame,
  in: (value: Value, container: Value) => contains(container, value),
  '==': equal,
  eq: equal,
  equalto: equal,
  '!=': unequal,
  ne: unequal,
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

/** Tests by name. Their first argument is the value. */
export const TESTS: ReadonlyMap<string, BoundFunction> = new Map([
  ...Object.entries(BODIES).map(([name, body]) => [name, bind(name, 'value', body)] as const),
  ...Object.entries(BINARY).map(([name, body]) => [name, bind(name, 'value other', body)] as const),
]);

// Reads attributes and items of values, with the restrictions of jinja2's sandbox.
import { defined, leading } from '../../runtime/required.js';
import { contains, isEqual } from './arithmetic.js';
import { braceFormat, type FieldAccess } from './brace-format.js';
import { typeError, valueError } from './fault.js';
import { requireIndex } from './numbers.js';
import { quoteText, repr } from './print.js';
import { readSubscript } from './sequences.js';
import { type Argument, type BoundFunction, bindFunction } from './signature.js';
import { callString, isStringMethod } from './string-methods.js';
import {
  Callable,
  Dict,
  Float,
  isList,
  type Keywords,
  type Markup,
  MISSING,
  Namespace,
  Native,
  Opaque,
  Range,
  Tuple,
  toIntegerOrNull,
  toList,
  toTextOrNull,
  typeName,
  Undefined,
  type Value,
  View,
} from './values.js';

/** Methods that change a value; the sandbox hides them. */
const MUTATING: Readonly<Record<string, ReadonlySet<string>>> = {
  dict: new Set(['clear', 'pop', 'popitem', 'setdefault', 'update']),
  list: new Set(['append', 'clear', 'pop', 'reverse', 'insert', 'sort', 'extend', 'remove']),
};

/** Attributes of all objects that templates must not read. */
const INTERNAL = new Set(
  'class delattr dir doc eq format ge getattribute getstate gt hash init init_subclass le lt ne new reduce reduce_ex repr setattr sizeof str subclasshook'
    .split(' ')
    .map((name) => `__${name}__`),
);
/** Internal attributes of a dict. Other names may be keys. */
const INTERNAL_OF_DICT = new Set(
  'class_getitem contains delitem getitem ior iter len or reversed ror setitem'
    .split(' ')
    .map((name) => `__${name}__`),
);

function isInternal(object: Value, name: string): boolean {
  if (!(object instanceof Dict)) return name.startsWith('__') && name.endsWith('__');
  return INTERNAL.has(name) || INTERNAL_OF_DICT.has(name);
}

type Method<T> = (self: T, ...args: Argument[]) => Value;

const DICT: Readonly<Record<string, readonly [string, Method<Dict>]>> = {
  copy: ['', (dict) => Dict.of(dict.entries())],
  fromkeys: [
    'keys value? /',
    (_, keys, value = null) => Dict.of(toList(defined(keys)).map((key) => [key, value] as const)),
  ],
  get: [
    'key default? /',
    (dict, key, value = null) => {
      const found = dict.get(defined(key));
      return found === MISSING ? value : found;
    },
  ],
  items: ['', (dict) => new View('items', dict)],
  keys: ['', (dict) => new View('keys', dict)],
  values: ['', (dict) => new View('values', dict)],
};

const SEQUENCE: Readonly<Record<string, readonly [string, Method<readonly Value[]>]>> = {
  count: [
    'value /',
    (items, value) => items.filter((item) => isEqual(item, defined(value))).length,
  ],
  index: ['value start? stop? /', findPosition],
};

const LIST = { ...SEQUENCE, copy: ['', (items) => items.slice()] } as typeof SEQUENCE;

function findPosition(
  items: readonly Value[],
  value: Argument,
  start?: Argument,
  stop?: Argument,
): number {
  const clamp = (bound: Argument, otherwise: number): number => {
    if (bound === undefined) return otherwise;
    const index = requireIndex(bound);
    return Math.max(0, index < 0 ? index + items.length : index);
  };
  const end = Math.min(items.length, clamp(stop, items.length));
  for (let i = clamp(start, 0); i < end; ++i) {
    if (isEqual(defined(items[i]), defined(value))) return i;
  }
  throw valueError(`${repr(defined(value))} is not in list`);
}

type IntegerValue = number | bigint;

const INTEGER: Readonly<Record<string, readonly [string, Method<IntegerValue>]>> = {
  as_integer_ratio: ['', (value) => new Tuple([value, 1])],
  bit_count: ['', (value) => countOnes(BigInt(value))],
  bit_length: ['', (value) => bitLength(BigInt(value))],
  conjugate: ['', (value) => value],
  is_integer: ['', () => true],
};

const countOnes = (value: bigint): number =>
  (value < 0n ? -value : value).toString(2).replaceAll('0', '').length;
const bitLength = (value: bigint): number =>
  value === 0n ? 0 : (value < 0n ? -value : value).toString(2).length;

const FLOAT: Readonly<Record<string, readonly [string, Method<Float>]>> = {
  conjugate: ['', (value) => value],
  is_integer: ['', ({ value }) => Number.isInteger(value)],
};

const RANGE: Readonly<Record<string, readonly [string, Method<Range>]>> = {
  count: ['value /', (range, value) => (contains(range, defined(value)) ? 1 : 0)],
  index: ['value /', (range, value) => findPosition(toList(range), value)],
};

/** Returns a function that finds the methods of a type and binds them to a value. */
function methodLookup<T extends Value>(
  table: Readonly<Record<string, readonly [string, (self: never, ...args: Argument[]) => Value]>>,
): (self: T, name: string) => Value | typeof MISSING {
  const bound = new Map<string, BoundFunction>();
  for (const [name, [parameters, body]] of Object.entries(table)) {
    bound.set(
      name,
      bindFunction(name, `self ${parameters}`, body as (...args: unknown[]) => Value),
    );
  }
  return (self, name) => {
    const method = bound.get(name);
    if (method === undefined) return MISSING;
    const run: BoundFunction = (args, keywords) => method([self, ...args], keywords);
    return new Native(name, run, typeName(self));
  };
}

const dictMethod = methodLookup<Dict>(DICT);
const listMethod = methodLookup<readonly Value[]>(LIST);
const sequenceMethod = methodLookup<readonly Value[]>(SEQUENCE);
const integerMethod = methodLookup<IntegerValue>(INTEGER);
const floatMethod = methodLookup<Float>(FLOAT);
const rangeMethod = methodLookup<Range>(RANGE);

/** Python's getattr(). */
function getAttribute(object: Value, name: string): Value | typeof MISSING {
  const text = toTextOrNull(object);
  if (text !== null) return textAttribute(object as string | Markup, name);
  if (object instanceof Dict) return dictMethod(object, name);
  if (isList(object)) return listMethod(object, name);
  if (object instanceof Tuple) {
    const at = object.names.indexOf(name);
    return at < 0 ? sequenceMethod(object.items, name) : defined(object.items[at]);
  }
  if (object instanceof Namespace) return object.attributes.get(name);
  if (object instanceof Callable || object instanceof Opaque) return object.attribute(name);
  if (object instanceof Range) {
    if (name === 'start' || name === 'stop' || name === 'step') return object[name];
    return rangeMethod(object, name);
  }
  return numberAttribute(object, name);
}

function numberAttribute(object: Value, name: string): Value | typeof MISSING {
  const integer = toIntegerOrNull(object);
  if (integer === null) {
    if (!(object instanceof Float)) return MISSING;
    if (name === 'real') return object;
    return name === 'imag' ? new Float(0) : floatMethod(object, name);
  }
  if (name === 'real' || name === 'numerator') return integer;
  if (name === 'imag') return 0;
  return name === 'denominator' ? 1 : integerMethod(integer, name);
}

function textAttribute(text: string | Markup, name: string): Value | typeof MISSING {
  if (isStringMethod(name)) {
    const run: BoundFunction = (args, keywords) => callString(text, name, args, keywords);
    return new Native(name, run, typeName(text));
  }
  if (name === 'encode') throw typeError('bytes are not supported: str.encode()');
  if (name === 'format') return createFormat(text);
  return name === 'format_map' ? createMapFormat(text) : MISSING;
}

const FIELDS: FieldAccess = { attribute: readAttribute, item: readItem };

function createFormat(text: string | Markup): Native {
  return new Native('format', (args, keywords) => formatTemplateText(text, args, keywords), 'str');
}

function createMapFormat(text: string | Markup): Native {
  const run: BoundFunction = (args, keywords) => {
    if (keywords.size > 0) throw typeError('format_map() takes no keyword arguments');
    if (args.length !== 1) {
      throw typeError(`format_map() takes exactly one argument (${args.length} given)`);
    }
    const [mapping] = leading(args, 1);
    if (mapping instanceof Undefined) throw mapping.fault();
    if (!(mapping instanceof Dict)) {
      throw typeError(`'${typeName(mapping)}' object is not subscriptable`);
    }
    return formatTemplateText(text, [], mapping);
  };
  return new Native('format_map', run, 'str');
}

function formatTemplateText(
  text: string | Markup,
  args: readonly Value[],
  keywords: Keywords | Dict,
): Value {
  if (typeof text === 'string') return braceFormat(text, args, keywords, FIELDS);
  throw typeError('format() of a marked text is not supported');
}

const createUndefined = (object: Value, name: Value): Undefined => {
  const key = toTextOrNull(name);
  const type = `${typeName(object)} object`;
  if (key === null) return new Undefined(`${type} has no element ${repr(name)}`);
  return new Undefined(`'${type}' has no attribute ${quoteText(key)}`);
};

function createUnsafe(object: Value, name: string): Undefined {
  const message = `access to attribute ${quoteText(name)} of '${typeName(object)}' object is unsafe.`;
  return new Undefined(message, 'SecurityError');
}

/** Returns an attribute that the sandbox allows; MISSING if the object lacks it. */
function safeAttribute(object: Value, name: string): Value | typeof MISSING {
  const type = typeName(object);
  if (name.startsWith('__') && isInternal(object, name)) return createUnsafe(object, name);
  if (MUTATING[type]?.has(name)) return createUnsafe(object, name);
  const value = getAttribute(object, name);
  return value !== MISSING && name.startsWith('_') ? createUnsafe(object, name) : value;
}

/** Evaluates object.name: an attribute, or else an item. */
export function readAttribute(object: Value, name: string): Value {
  if (object instanceof Undefined) throw object.fault();
  const value = safeAttribute(object, name);
  if (value !== MISSING) return value;
  const item = readSubscript(object, name);
  return item === MISSING ? createUndefined(object, name) : item;
}

/** Evaluates object[key]: an item, or else an attribute. */
export function readItem(object: Value, key: Value): Value {
  const subscripted = readSubscript(object, key);
  if (subscripted !== MISSING) return subscripted;
  const name = toTextOrNull(key);
  if (name !== null) {
    const value = safeAttribute(object, name);
    if (value !== MISSING) return value;
  }
  return createUndefined(object, key);
}

/** Evaluates the filter "attr": an attribute, never an item. */
export function readAttributeOnly(object: Value, name: string): Value {
  if (object instanceof Undefined) throw object.fault();
  const value = safeAttribute(object, name);
  return value === MISSING ? createUndefined(object, name) : value;
}

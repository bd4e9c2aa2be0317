// Values of templates, with Python's types. Strings, integers, booleans and lists are JavaScript
// values; None is null.
import { defined } from '../../runtime/required.js';
import { spend, TemplateFault, typeError, undefinedError } from './fault.js';

/** A value. An integer is a number if that is exact, else a bigint. */
export type Value =
  | string
  | number
  | bigint
  | boolean
  | null
  | Float
  | readonly Value[]
  | Tuple
  | Dict
  | Undefined
  | Markup
  | Generator
  | Range
  | View
  | Namespace
  | Callable
  | Opaque;

/** Marks the end of an iteration. */
export const DONE = Symbol('done');
/** Marks a missing variable, attribute or argument. */
export const MISSING = Symbol('missing');

export type Next = () => Value | typeof DONE;
export type Keywords = ReadonlyMap<string, Value>;

export class Float {
  constructor(readonly value: number) {}
}

export class Tuple {
  /** `names` are the field names of a named tuple. */
  constructor(
    readonly items: readonly Value[],
    readonly names: readonly string[] = [],
  ) {}
}

/**
 * A text that "safe" or "escape" has marked. Other texts are escaped when they are joined to it.
 */
export class Markup {
  constructor(readonly text: string) {}
}

/** An undefined value. It prints nothing, and any access fails. */
export class Undefined {
  constructor(
    private readonly message: string,
    private readonly kind = 'UndefinedError',
  ) {}

  fault(): TemplateFault {
    return this.kind === 'UndefinedError'
      ? undefinedError(this.message)
      : new TemplateFault(this.kind, this.message);
  }
}

/** An iterator that is consumed once. `type` is its type name in Python. */
export class Generator {
  constructor(
    readonly next: Next,
    readonly type = 'generator',
    readonly name = type,
  ) {}
}

export class Range {
  readonly length: number;

  constructor(
    readonly start: number,
    readonly stop: number,
    readonly step: number,
  ) {
    this.length = Math.max(0, Math.ceil((stop - start) / step));
  }

  at(index: number): number {
    return this.start + index * this.step;
  }
}

/** Result of keys(), values() or items() of a dict. */
export class View {
  constructor(
    readonly kind: 'keys' | 'values' | 'items',
    readonly dict: Dict,
  ) {}

  list(): Value[] {
    spend(this.dict.size);
    if (this.kind === 'keys') return this.dict.keys();
    if (this.kind === 'values') return [...this.dict.values()];
    return this.dict.entries().map((entry) => new Tuple(entry));
  }
}

export class Namespace {
  constructor(readonly attributes: Dict) {}
}

/** A function that templates can call. */
export abstract class Callable {
  abstract readonly type: string;
  abstract call(args: readonly Value[], keywords: Keywords): Value;
  /** repr(). */
  abstract describe(): string;
  attribute(_name: string): Value | typeof MISSING {
    return MISSING;
  }
  /** Returns an iterator over the items; null if the object is not iterable. */
  iterate(): Next | null {
    return null;
  }
  /** len(); null if the object has none. */
  get length(): number | null {
    return null;
  }
}

/** An object with attributes that cannot be called. */
export abstract class Opaque {
  abstract readonly type: string;
  abstract describe(): string;
  abstract attribute(name: string): Value | typeof MISSING;
  /** Returns an iterator over the items; null if the object is not iterable. */
  iterate(): Next | null {
    return null;
  }
  get length(): number | null {
    return null;
  }
}

/** A set, the result of subtracting dict views. It keeps the order of the first operand. */
export class PySet extends Opaque {
  readonly type = 'set';

  constructor(readonly items: Dict) {
    super();
  }

  describe(): string {
    return 'set';
  }

  attribute(): typeof MISSING {
    return MISSING;
  }

  override iterate(): Next {
    return iterateList(this.items.keys());
  }

  override get length(): number {
    return this.items.size;
  }
}

export const NO_KEYWORDS: Keywords = new Map();

/** A function or a method. */
export class Native extends Callable {
  readonly type: string = 'function';

  constructor(
    readonly name: string,
    private readonly run: (args: readonly Value[], keywords: Keywords) => Value,
    private readonly of = '',
  ) {
    super();
  }

  call(args: readonly Value[], keywords: Keywords): Value {
    return this.run(args, keywords);
  }

  describe(): string {
    if (this.of === '') return `<function ${this.name} at 0x7f0000000000>`;
    return `<built-in method ${this.name} of ${this.of} object at 0x7f0000000000>`;
  }
}

/** Equal for keys that compare equal, such as 1, 1.0 and True. */
type Hash = unknown;
type Entry = readonly [Value, Value];

const UNDEFINED_HASH = Symbol('Undefined');

/** Returns the hash of a key. Throws TypeError if the value cannot be a key. */
export function hashKey(key: Value): Hash {
  switch (typeof key) {
    case 'string':
      return key.charCodeAt(0) === 0 ? `\0s${key}` : key;
    case 'boolean':
      return key ? 1 : 0;
    case 'number':
    case 'bigint':
      return key;
  }
  if (key === null) return null;
  if (key instanceof Float) {
    const { value } = key;
    if (Number.isInteger(value) && !Number.isSafeInteger(value)) return BigInt(value);
    return Number.isNaN(value) ? key : value + 0;
  }
  if (key instanceof Markup) return hashKey(key.text);
  if (key instanceof Tuple) return `\0t${key.items.map(hashText).join('')}`;
  if (key instanceof Undefined) return UNDEFINED_HASH;
  if (key instanceof Range) return `\0r${key.length && key.start},${key.length},${key.step}`;
  if (Array.isArray(key) || isUnhashable(key)) {
    throw typeError(`unhashable type: '${typeName(key)}'`);
  }
  return key;
}

export const isUnhashable = (key: Value): boolean => {
  if (key instanceof View) return key.kind !== 'values';
  return key instanceof Dict || key instanceof PySet;
};

const objects = new WeakMap<object, number>();
let objectCount = 0;

/**
 * Returns the hash as text with its type and length, so that equal joined texts mean equal tuples.
 */
function hashText(key: Value): string {
  spend();
  const hash = hashKey(key);
  if (typeof hash === 'object' && hash !== null) {
    const number = objects.get(hash) ?? ++objectCount;
    objects.set(hash, number);
    return `o${number};`;
  }
  const text = String(hash);
  return `${typeof hash === 'bigint' ? 'n' : (typeof hash)[0]}${text.length}:${text}`;
}

export class Dict {
  private readonly map = new Map<Hash, Value>();
  /** Keys that differ from their hashes, by hash; null until the dict has one. */
  private otherKeys: Map<Hash, Value> | null = null;

  static of(entries: Iterable<Entry>): Dict {
    const dict = new Dict();
    for (const [key, value] of entries) dict.set(key, value);
    return dict;
  }

  get size(): number {
    return this.map.size;
  }

  get(key: Value): Value | typeof MISSING {
    const hash = hashKey(key);
    const value = this.map.get(hash);
    return value === undefined ? MISSING : value;
  }

  has(key: Value): boolean {
    return this.map.has(hashKey(key));
  }

  /** Sets an item while the dict is built. Templates cannot change a dict. */
  set(key: Value, value: Value): void {
    const hash = hashKey(key);
    if (hash !== key && !this.map.has(hash)) {
      this.otherKeys ??= new Map();
      this.otherKeys.set(hash, key);
    }
    this.map.set(hash, value);
  }

  values(): IterableIterator<Value> {
    return this.map.values();
  }

  keys(): Value[] {
    return this.entries().map(([key]) => key);
  }

  entries(): Entry[] {
    const { otherKeys } = this;
    if (otherKeys === null) return [...this.map] as Entry[];
    return Array.from(this.map, ([hash, value]) => {
      const key = otherKeys.get(hash);
      return [key === undefined ? (hash as Value) : key, value];
    });
  }
}

export const isList = (value: Value): value is readonly Value[] => Array.isArray(value);

/** The text of a string; null for other values. */
export function toTextOrNull(value: Value): string | null {
  if (typeof value === 'string') return value;
  return value instanceof Markup ? value.text : null;
}

/** Returns the name of the type in Python. */
export function typeName(value: Value): string {
  switch (typeof value) {
    case 'string':
      return 'str';
    case 'boolean':
      return 'bool';
    case 'number':
    case 'bigint':
      return 'int';
  }
  if (value === null) return 'NoneType';
  if (Array.isArray(value)) return 'list';
  if (value instanceof Float) return 'float';
  if (value instanceof Dict) return 'dict';
  if (value instanceof Tuple) return value.names.length > 0 ? '_GroupTuple' : 'tuple';
  if (value instanceof Undefined) return 'Undefined';
  if (value instanceof Markup) return 'Markup';
  if (value instanceof Range) return 'range';
  if (value instanceof View) return `dict_${value.kind}`;
  if (value instanceof Namespace) return 'Namespace';
  return (value as Generator | Callable | Opaque).type;
}

/** bool(). */
export function toBoolean(value: Value): boolean {
  switch (typeof value) {
    case 'string':
      return value !== '';
    case 'boolean':
      return value;
    case 'number':
      return value !== 0;
    case 'bigint':
      return true;
  }
  if (value === null || value instanceof Undefined) return false;
  if (Array.isArray(value)) return value.length > 0;
  if (value instanceof Dict) return value.size > 0;
  if (value instanceof Float) return value.value !== 0;
  if (value instanceof Markup) return value.text !== '';
  if (value instanceof Tuple) return value.items.length > 0;
  if (value instanceof Range) return value.length > 0;
  if (value instanceof View) return value.dict.size > 0;
  return !(value instanceof Opaque) || value.length !== 0;
}

/** Returns an integer, also for booleans; null for other values. */
export function toIntegerOrNull(value: Value): number | bigint | null {
  if (typeof value === 'number' || typeof value === 'bigint') return value;
  return typeof value === 'boolean' ? Number(value) : null;
}

/** Returns the value as a number if that is exact. */
export function normalizeInteger(value: bigint): number | bigint {
  const number = Number(value);
  return Number.isSafeInteger(number) ? number : value;
}

/** Returns an iterator; null if the value is not iterable. */
export function startIteration(value: Value): Next | null {
  if (Array.isArray(value)) return iterateList(value);
  const text = toTextOrNull(value);
  if (text !== null) return iterateText(text);
  if (value instanceof Tuple) return iterateList(value.items);
  if (value instanceof Dict) return iterateList(value.keys());
  if (value instanceof View) return iterateList(value.list());
  if (value instanceof Generator) return value.next;
  if (value instanceof Range) {
    let at = 0;
    return () => (at < value.length ? value.at(at++) : DONE);
  }
  if (value instanceof Undefined) return () => DONE;
  return value instanceof Opaque || value instanceof Callable ? value.iterate() : null;
}

export function iterateList(list: readonly Value[]): Next {
  let at = 0;
  return () => (at < list.length ? defined(list[at++]) : DONE);
}

/** As in Python, the letters of a Markup are plain strings. */
function iterateText(text: string): Next {
  const letters = text[Symbol.iterator]();
  return () => {
    const { done, value } = letters.next();
    return done ? DONE : value;
  };
}

/** iter(). Throws TypeError. */
export function iterate(value: Value): Next {
  const next = startIteration(value);
  if (next === null) throw typeError(`'${typeName(value)}' object is not iterable`);
  return next;
}

/** list(). Throws TypeError. */
export function toList(value: Value): readonly Value[] {
  if (Array.isArray(value)) return value;
  if (value instanceof Tuple) return value.items;
  const next = iterate(value);
  const list: Value[] = [];
  for (let item = next(); item !== DONE; item = next()) {
    spend();
    list.push(item);
  }
  return list;
}

// Jinja2's filters that read or create sequences.
import { defined } from '../../runtime/required.js';
import { add, isEqual, isOrdered, sortValues } from './arithmetic.js';
import { readItem as itemOf } from './attributes.js';
import { requireBounded, runtimeError, spend, TemplateFault, typeError } from './fault.js';
import { requireIndex } from './numbers.js';
import { quoteText, str } from './print.js';
import { readSubscript, requireLength, reverseSequence } from './sequences.js';
import {
  type Argument,
  type Body,
  type BoundFunction,
  bindFunction,
  orDefault,
} from './signature.js';
import { FILTER_NAMES, TESTS } from './tests.js';
import { filterError, TEXT_FILTERS } from './text-filters.js';
import {
  Dict,
  DONE,
  Generator,
  hashKey,
  iterate,
  type Keywords,
  Markup,
  MISSING,
  type Next,
  Tuple,
  toBoolean,
  toIntegerOrNull,
  toList,
  toTextOrNull,
  typeName,
  Undefined,
  type Value,
} from './values.js';

type Getter = (value: Value) => Value;

/** Returns a text in lower case; other values unchanged. */
const ignoreCase = (value: Value): Value => toTextOrNull(value)?.toLowerCase() ?? value;

/**
 * Returns a getter of an attribute such as "a.b.0". It returns `otherwise` for undefined values.
 */
function createGetter(attribute: Value, isCaseless: boolean, otherwise: Value = null): Getter {
  const parts = splitAttribute(attribute);
  return (value) => {
    let current = value;
    for (const part of parts) {
      spend();
      current = itemOf(current, part);
      if (otherwise !== null && current instanceof Undefined) current = otherwise;
    }
    return isCaseless ? ignoreCase(current) : current;
  };
}

function splitAttribute(attribute: Value): readonly Value[] {
  const text = toTextOrNull(attribute);
  if (text === null) return attribute === null ? [] : [attribute];
  return text.split('.').map((part) => (/^\p{Nd}+$/u.test(part) ? Number(part) : part));
}

/** Returns a getter for "a,b", whose values are compared one after the other. */
function createMultiGetter(attribute: Value, isCaseless: boolean): Getter {
  const text = toTextOrNull(attribute);
  const getters = (text === null ? [attribute] : text.split(',')).map((value) =>
    createGetter(value, isCaseless),
  );
  return (value) => getters.map((get) => get(value));
}

/** A generator that starts at its first use. */
function createLazyGenerator(name: string, begin: () => Next): Generator {
  let next: Next | null = null;
  return new Generator(
    () => {
      next ??= begin();
      spend();
      return next();
    },
    'generator',
    name,
  );
}

/** Returns a generator over a list that is computed at its first use. */
const createLazyList = (name: string, compute: () => readonly Value[]): Generator =>
  createLazyGenerator(name, () => {
    const list = compute();
    let at = 0;
    return () => (at < list.length ? defined(list[at++]) : DONE);
  });

function mapNext(next: Next, convert: Getter): Next {
  return () => {
    const item = next();
    return item === DONE ? DONE : convert(item);
  };
}

const END: Next = () => DONE;

/** map(): returns an attribute of each item, or applies a filter to it. */
function map(value: Value, args: readonly Value[], keywords: Keywords): Value {
  return createLazyGenerator('sync_do_map', () => {
    if (!toBoolean(value)) return END;
    const convert = createConversion(args, keywords);
    return mapNext(iterate(value), convert);
  });
}

function createConversion(args: readonly Value[], keywords: Keywords): Getter {
  const attribute = keywords.get('attribute');
  if (args.length === 0 && attribute !== undefined) {
    for (const name of keywords.keys()) {
      if (name === 'attribute' || name === 'default') continue;
      throw filterError(`Unexpected keyword argument ${quoteText(name)}`);
    }
    return createGetter(attribute, false, keywords.get('default') ?? null);
  }
  const [name, ...rest] = args;
  if (name === undefined) throw filterError('map requires a filter argument');
  const filter = findNamed(FILTERS, 'filter', name);
  return (value) => filter([value, ...rest], keywords);
}

/** Returns the filter or test that a template names by a string. */
function findNamed(
  table: ReadonlyMap<string, BoundFunction>,
  kind: string,
  name: Value,
): BoundFunction {
  const key = toTextOrNull(name);
  if (key === null) hashKey(name);
  const fn = key === null ? undefined : table.get(key);
  if (fn) return fn;
  throw runtimeError(`No ${kind} named ${key === null ? str(name) : quoteText(key)}.`);
}

/** Defines a selection filter. It keeps an item if the test returns `keeps`. */
function select(keeps: boolean, byAttribute: boolean): Body {
  return (value: Value, args: readonly Value[], keywords: Keywords) =>
    createLazyGenerator('select_or_reject', () => {
      if (!toBoolean(value)) return END;
      const [attribute] = args;
      if (byAttribute && attribute === undefined) {
        throw filterError('Missing parameter for attribute name');
      }
      const get = byAttribute ? createGetter(defined(attribute), false) : (value: Value) => value;
      const [test, ...rest] = byAttribute ? args.slice(1) : args;
      const next = iterate(value);
      const isKept = (value: Value): boolean => {
        const key = get(value);
        if (test === undefined) return toBoolean(key) === keeps;
        const check = findNamed(TESTS, 'test', test);
        return toBoolean(check([key, ...rest], keywords)) === keeps;
      };
      return () => {
        for (let item = next(); item !== DONE; item = next()) {
          spend();
          if (isKept(item)) return item;
        }
        return DONE;
      };
    });
}

function join(value: Value, separator: Argument, attribute: Argument): Value {
  const isPlain = attribute === undefined || attribute === null;
  const get = isPlain ? null : createGetter(attribute, false);
  const by = str(orDefault(separator, ''));
  const next = iterate(value);
  let text = '';
  let isFirst = true;
  for (let item = next(); item !== DONE; item = next()) {
    spend();
    const part = str(get === null ? item : get(item));
    text += isFirst ? part : by + part;
    isFirst = false;
    requireBounded(text);
  }
  return text;
}

function first(value: Value): Value {
  const item = iterate(value)();
  return item === DONE ? new Undefined('No first item, sequence was empty.') : item;
}

function last(value: Value): Value {
  const item = requireReversed(value).next();
  return item === DONE ? new Undefined('No last item, sequence was empty.') : item;
}

function requireReversed(value: Value): Generator {
  const reversed = reverseSequence(value);
  if (reversed !== null) return reversed;
  throw typeError(`'${typeName(value)}' object is not reversible`);
}

function reverse(value: Value): Value {
  const text = toTextOrNull(value);
  if (text !== null) {
    const reversedText = Array.from(text).reverse().join('');
    return value instanceof Markup ? new Markup(reversedText) : reversedText;
  }
  const reversed = reverseSequence(value);
  if (reversed !== null) return reversed;
  try {
    return [...toList(value)].reverse();
  } catch (error) {
    if (!(error instanceof TemplateFault) || error.kind !== 'TypeError') throw error;
    throw filterError('argument must be iterable');
  }
}

function random(value: Value): Value {
  const length = requireLength(value);
  if (length === 0) return new Undefined('No random item, sequence was empty.');
  const item = readSubscript(value, Math.floor(Math.random() * length));
  if (item === MISSING) throw new TemplateFault('KeyError', 'random() of a dict');
  return item;
}

function dictSort(value: Value, isCased: Argument, by: Argument, isReverse: Argument): Value {
  const key = orDefault(by, 'key');
  if (key !== 'key' && key !== 'value') {
    throw filterError('You can only sort by either "key" or "value"');
  }
  if (value instanceof Undefined) throw value.fault();
  if (!(value instanceof Dict)) {
    throw new TemplateFault(
      'AttributeError',
      `'${typeName(value)}' object has no attribute 'items'`,
    );
  }
  const at = key === 'key' ? 0 : 1;
  const get = (pair: Value): Value => {
    const component = defined((pair as Tuple).items[at]);
    return toBoolean(isCased ?? false) ? component : ignoreCase(component);
  };
  const pairs = value.entries().map((entry) => new Tuple(entry));
  return sortValues(pairs, get, toBoolean(isReverse ?? false));
}

function sort(value: Value, isReverse: Argument, isCased: Argument, attribute: Argument): Value {
  const get = createMultiGetter(attribute ?? null, !toBoolean(isCased ?? false));
  return sortValues(toList(value), get, toBoolean(isReverse ?? false));
}

function unique(value: Value, isCased: Argument, attribute: Argument): Value {
  return createLazyGenerator('do_unique', () => {
    const get = createGetter(attribute ?? null, !toBoolean(isCased ?? false));
    const seen = new Dict();
    const next = iterate(value);
    return () => {
      for (let item = next(); item !== DONE; item = next()) {
        spend();
        const key = get(item);
        if (seen.has(key)) continue;
        seen.set(key, null);
        return item;
      }
      return DONE;
    };
  });
}

/** Defines min() or max(), which return the first extreme item. */
function defineExtreme(operator: '<' | '>'): Body {
  return (value: Value, isCased: Argument, attribute: Argument) => {
    const next = iterate(value);
    let best = next();
    if (best === DONE) return new Undefined('No aggregated item, sequence was empty.');
    const get = createGetter(attribute ?? null, !toBoolean(isCased ?? false));
    let key = get(best);
    for (let item = next(); item !== DONE; item = next()) {
      spend();
      const other = get(item);
      if (isOrdered(operator, other, key)) [best, key] = [item, other];
    }
    return best;
  };
}

function sum(value: Value, attribute: Argument, start: Argument): Value {
  const isPlain = attribute === undefined || attribute === null;
  const get = isPlain ? null : createGetter(attribute, false);
  let total = orDefault(start, 0);
  if (toTextOrNull(total) !== null)
    throw typeError("sum() can't sum strings [use ''.join(seq) instead]");
  const next = iterate(value);
  for (let item = next(); item !== DONE; item = next()) {
    spend();
    total = add(total, get === null ? item : get(item));
  }
  return total;
}

function groupBy(value: Value, attribute: Value, otherwise: Argument, isCased: Argument): Value {
  const isCaseless = !toBoolean(isCased ?? false);
  const get = createGetter(attribute, isCaseless, otherwise ?? null);
  const plain = createGetter(attribute, false, otherwise ?? null);
  const groups: { key: Value; items: Value[] }[] = [];
  for (const item of sortValues(toList(value), get, false)) {
    const key = get(item);
    const group = groups.at(-1);
    if (group && isEqual(group.key, key)) group.items.push(item);
    else groups.push({ key, items: [item] });
  }
  return groups.map(
    ({ key, items }) =>
      new Tuple([isCaseless ? plain(defined(items[0])) : key, items], ['grouper', 'list']),
  );
}

function batch(value: Value, lineCount: Value, fill: Argument): Value {
  return createLazyList('do_batch', () => {
    const next = iterate(value);
    const lines: Value[][] = [];
    let line: Value[] = [];
    for (let item = next(); item !== DONE; item = next()) {
      spend();
      if (isEqual(line.length, lineCount)) {
        lines.push(line);
        line = [];
      }
      line.push(item);
    }
    if (line.length === 0) return lines;
    const by = fill ?? null;
    if (by !== null && isOrdered('<', line.length, lineCount)) {
      const missing = requireIndex(lineCount) - line.length;
      spend(missing);
      for (let i = 0; i < missing; ++i) line.push(by);
    }
    return [...lines, line];
  });
}

function sliceInto(value: Value, slices: Value, fill: Argument): Value {
  return createLazyList('sync_do_slice', () => {
    const items = toList(value);
    const count = requireInteger(slices);
    if (count === 0)
      throw new TemplateFault('ZeroDivisionError', 'integer division or modulo by zero');
    const each = Math.floor(items.length / count);
    const longer = items.length - each * count;
    let start = 0;
    const parts: Value[][] = [];
    for (let i = 0; i < count; ++i) {
      spend();
      const end = start + each + (i < longer ? 1 : 0);
      const part = items.slice(start, end);
      if ((fill ?? null) !== null && i >= longer) part.push(defined(fill));
      parts.push(part);
      start = end;
    }
    return parts;
  });
}

function requireInteger(value: Value): number {
  if (value instanceof Undefined) throw value.fault();
  if (toIntegerOrNull(value) !== null) return requireIndex(value);
  throw typeError(`'${typeName(value)}' object cannot be interpreted as an integer`);
}

function items(value: Value): Value {
  return createLazyList('do_items', () => {
    if (value instanceof Undefined) return [];
    if (!(value instanceof Dict)) throw typeError('Can only get item pairs from a mapping.');
    return value.entries().map((entry) => new Tuple(entry));
  });
}

const defineSelection = (keeps: boolean, byAttribute: boolean): readonly [string, Body] => [
  'value *args **keywords',
  select(keeps, byAttribute),
];

const LIST_FILTERS: Readonly<Record<string, readonly [string, Body]>> = {
  batch: ['value linecount fill_with?', batch],
  count: ['obj /', requireLength],
  dictsort: ['value case_sensitive? by? reverse?', dictSort],
  first: ['seq', first],
  groupby: ['value attribute default? case_sensitive?', groupBy],
  items: ['value', items],
  join: ['value d? attribute?', join],
  last: ['seq', last],
  length: ['obj /', requireLength],
  list: ['value', (value: Value) => toList(value).slice()],
  map: ['value *args **keywords', map],
  max: ['value case_sensitive? attribute?', defineExtreme('>')],
  min: ['value case_sensitive? attribute?', defineExtreme('<')],
  random: ['seq', random],
  reject: defineSelection(false, false),
  rejectattr: defineSelection(false, true),
  reverse: ['value', reverse],
  select: defineSelection(true, false),
  selectattr: defineSelection(true, true),
  slice: ['value slices fill_with?', sliceInto],
  sort: ['value reverse? case_sensitive? attribute?', sort],
  sum: ['iterable attribute? start?', sum],
  unique: ['value case_sensitive? attribute?', unique],
};

/** Filters by name. The value is their first argument. */
export const FILTERS: ReadonlyMap<string, BoundFunction> = new Map(
  Object.entries({ ...TEXT_FILTERS, ...LIST_FILTERS }).map(([name, [parameters, body]]) => {
    FILTER_NAMES.add(name);
    return [name, bindFunction(name, parameters, body)] as const;
  }),
);

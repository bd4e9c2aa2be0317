// The filters of jinja2 that read or make sequences.
import { defined } from '../../runtime/required.js';
import { add, isEqual, isOrdered, sorted } from './arithmetic.js';
import { item as itemOf } from './attributes.js';
import { bounded, runtimeError, spend, TemplateFault, typeError } from './fault.js';
import { indexOf } from './numbers.js';
import { quoted, str } from './print.js';
import { lengthOf, reversedOf, subscript } from './sequences.js';
import { type Argument, type Body, type BoundFunction, bind, given } from './signature.js';
import { FILTER_NAMES, TESTS } from './tests.js';
import { filterError, TEXT_FILTERS } from './text-filters.js';
import {
  Dict,
  DONE,
  Generator,
  hashOf,
  integerOf,
  isTrue,
  iterate,
  type Keywords,
  listOf,
  Markup,
  MISSING,
  type Next,
  Tuple,
  textOf,
  typeName,
  Undefined,
  type Value,
} from './values.js';

type Getter = (value: Value) => Value;

/** Texts in lower case, where a filter takes no heed of it. */
const ignoreCase = (value: Value): Value => textOf(value)?.toLowerCase() ?? value;

/**
 * Returns a getter of an attribute such as "a.b.0". It returns `otherwise` for undefined values.
 */
function getterOf(attribute: Value, isCaseless: boolean, otherwise: Value = null): Getter {
  const parts = partsOf(attribute);
  return (value) => {
    let found = value;
    for (const part of parts) {
      spend();
      found = itemOf(found, part);
      if (otherwise !== null && found instanceof Undefined) found = otherwise;
    }
    return isCaseless ? ignoreCase(found) : found;
  };
}

function partsOf(attribute: Value): readonly Value[] {
  const text = textOf(attribute);
  if (text === null) return attribute === null ? [] : [attribute];
  return text.split('.').map((part) => (/^\p{Nd}+$/u.test(part) ? Number(part) : part));
}

/** A getter for "a,b". Its values are compared one after the other. */
function multiGetterOf(attribute: Value, isCaseless: boolean): Getter {
  const text = textOf(attribute);
  const getters = (text === null ? [attribute] : text.split(',')).map((value) =>
    getterOf(value, isCaseless),
  );
  return (value) => getters.map((get) => get(value));
}

/** A generator that starts at its first use. */
function lazily(name: string, begin: () => Next): Generator {
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

/** A generator over a list that is computed at its first use. */
const lazyList = (name: string, compute: () => readonly Value[]): Generator =>
  lazily(name, () => {
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

/** map(): an attribute of each item, or a filter applied to it. */
function map(value: Value, args: readonly Value[], keywords: Keywords): Value {
  return lazily('sync_do_map', () => {
    if (!isTrue(value)) return END;
    const convert = conversionOf(args, keywords);
    return mapNext(iterate(value), convert);
  });
}

function conversionOf(args: readonly Value[], keywords: Keywords): Getter {
  const attribute = keywords.get('attribute');
  if (args.length === 0 && attribute !== undefined) {
    for (const name of keywords.keys()) {
      if (name === 'attribute' || name === 'default') continue;
      throw filterError(`Unexpected keyword argument ${quoted(name)}`);
    }
    return getterOf(attribute, false, keywords.get('default') ?? null);
  }
  const [name, ...rest] = args;
  if (name === undefined) throw filterError('map requires a filter argument');
  const filter = named(FILTERS, 'filter', name);
  return (value) => filter([value, ...rest], keywords);
}

/** A filter or a test that a template names in a text. */
function named(
  table: ReadonlyMap<string, BoundFunction>,
  kind: string,
  name: Value,
): BoundFunction {
  const key = textOf(name);
  if (key === null) hashOf(name);
  const found = key === null ? undefined : table.get(key);
  if (found) return found;
  throw runtimeError(`No ${kind} named ${key === null ? str(name) : quoted(key)}.`);
}

/** `keeps` is the answer of the test that keeps an item. */
function select(keeps: boolean, byAttribute: boolean): Body {
  return (value: Value, args: readonly Value[], keywords: Keywords) =>
    lazily('select_or_reject', () => {
      if (!isTrue(value)) return END;
      const [attribute] = args;
      if (byAttribute && attribute === undefined) {
        throw filterError('Missing parameter for attribute name');
      }
      const get = byAttribute ? getterOf(defined(attribute), false) : (value: Value) => value;
      const [test, ...rest] = byAttribute ? args.slice(1) : args;
      const next = iterate(value);
      const isKept = (value: Value): boolean => {
        const key = get(value);
        if (test === undefined) return isTrue(key) === keeps;
        const check = named(TESTS, 'test', test);
        return isTrue(check([key, ...rest], keywords)) === keeps;
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
  const get = isPlain ? null : getterOf(attribute, false);
  const by = str(given(separator, ''));
  const next = iterate(value);
  let text = '';
  let isFirst = true;
  for (let item = next(); item !== DONE; item = next()) {
    spend();
    const part = str(get === null ? item : get(item));
    text += isFirst ? part : by + part;
    isFirst = false;
    bounded(text);
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
  const reversed = reversedOf(value);
  if (reversed !== null) return reversed;
  throw typeError(`'${typeName(value)}' object is not reversible`);
}

function reverse(value: Value): Value {
  const text = textOf(value);
  if (text !== null) {
    const whole = Array.from(text).reverse().join('');
    return value instanceof Markup ? new Markup(whole) : whole;
  }
  const reversed = reversedOf(value);
  if (reversed !== null) return reversed;
  try {
    return [...listOf(value)].reverse();
  } catch (error) {
    if (!(error instanceof TemplateFault) || error.kind !== 'TypeError') throw error;
    throw filterError('argument must be iterable');
  }
}

function random(value: Value): Value {
  const length = lengthOf(value);
  if (length === 0) return new Undefined('No random item, sequence was empty.');
  const found = subscript(value, Math.floor(Math.random() * length));
  if (found === MISSING) throw new TemplateFault('KeyError', 'random() of a dict');
  return found;
}

function dictSort(value: Value, isCased: Argument, by: Argument, isReverse: Argument): Value {
  const key = given(by, 'key');
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
    const own = defined((pair as Tuple).items[at]);
    return isTrue(isCased ?? false) ? own : ignoreCase(own);
  };
  const pairs = value.entries().map((entry) => new Tuple(entry));
  return sorted(pairs, get, isTrue(isReverse ?? false));
}

function sort(value: Value, isReverse: Argument, isCased: Argument, attribute: Argument): Value {
  const get = multiGetterOf(attribute ?? null, !isTrue(isCased ?? false));
  return sorted(listOf(value), get, isTrue(isReverse ?? false));
}

function unique(value: Value, isCased: Argument, attribute: Argument): Value {
  return lazily('do_unique', () => {
    const get = getterOf(attribute ?? null, !isTrue(isCased ?? false));
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

/** min() and max(): the first of the smallest, or of the largest. */
function extreme(operator: '<' | '>'): Body {
  return (value: Value, isCased: Argument, attribute: Argument) => {
    const next = iterate(value);
    let best = next();
    if (best === DONE) return new Undefined('No aggregated item, sequence was empty.');
    const get = getterOf(attribute ?? null, !isTrue(isCased ?? false));
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
  const get = isPlain ? null : getterOf(attribute, false);
  let total = given(start, 0);
  if (textOf(total) !== null) throw typeError("sum() can't sum strings [use ''.join(seq) instead]");
  const next = iterate(value);
  for (let item = next(); item !== DONE; item = next()) {
    spend();
    total = add(total, get === null ? item : get(item));
  }
  return total;
}

function groupBy(value: Value, attribute: Value, otherwise: Argument, isCased: Argument): Value {
  const isCaseless = !isTrue(isCased ?? false);
  const get = getterOf(attribute, isCaseless, otherwise ?? null);
  const plain = getterOf(attribute, false, otherwise ?? null);
  const groups: { key: Value; items: Value[] }[] = [];
  for (const item of sorted(listOf(value), get, false)) {
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
  return lazyList('do_batch', () => {
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
      const missing = indexOf(lineCount) - line.length;
      spend(missing);
      for (let i = 0; i < missing; ++i) line.push(by);
    }
    return [...lines, line];
  });
}

function sliceInto(value: Value, slices: Value, fill: Argument): Value {
  return lazyList('sync_do_slice', () => {
    const items = listOf(value);
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
  if (integerOf(value) !== null) return indexOf(value);
  throw typeError(`'${typeName(value)}' object cannot be interpreted as an integer`);
}

function items(value: Value): Value {
  return lazyList('do_items', () => {
    if (value instanceof Undefined) return [];
    if (!(value instanceof Dict)) throw typeError('Can only get item pairs from a mapping.');
    return value.entries().map((entry) => new Tuple(entry));
  });
}

const selection = (keeps: boolean, byAttribute: boolean): readonly [string, Body] => [
  'value *args **keywords',
  select(keeps, byAttribute),
];

const LIST_FILTERS: Readonly<Record<string, readonly [string, Body]>> = {
  batch: ['value linecount fill_with?', batch],
  count: ['obj /', lengthOf],
  dictsort: ['value case_sensitive? by? reverse?', dictSort],
  first: ['seq', first],
  groupby: ['value attribute default? case_sensitive?', groupBy],
  items: ['value', items],
  join: ['value d? attribute?', join],
  last: ['seq', last],
  length: ['obj /', lengthOf],
  list: ['value', (value: Value) => listOf(value).slice()],
  map: ['value *args **keywords', map],
  max: ['value case_sensitive? attribute?', extreme('>')],
  min: ['value case_sensitive? attribute?', extreme('<')],
  random: ['seq', random],
  reject: selection(false, false),
  rejectattr: selection(false, true),
  reverse: ['value', reverse],
  select: selection(true, false),
  selectattr: selection(true, true),
  slice: ['value slices fill_with?', sliceInto],
  sort: ['value reverse? case_sensitive? attribute?', sort],
  sum: ['iterable attribute? start?', sum],
  unique: ['value case_sensitive? attribute?', unique],
};

/** Filters by name. Their first argument is the value. */
export const FILTERS: ReadonlyMap<string, BoundFunction> = new Map(
  Object.entries({ ...TEXT_FILTERS, ...LIST_FILTERS }).map(([name, [parameters, body]]) => {
    FILTER_NAMES.add(name);
    return [name, bind(name, parameters, body)] as const;
  }),
);

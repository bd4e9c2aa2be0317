// Lengths, indices and slices of values, as in Python.

import { defined } from '../../runtime/required.js';
import { spend, spendText, typeError, valueError } from './fault.js';
import { requireIndex } from './numbers.js';
import { splitLetters, textLength } from './unicode.js';
import {
  Callable,
  Dict,
  DONE,
  Generator,
  isList,
  isUnhashable,
  Markup,
  MISSING,
  Opaque,
  Range,
  Tuple,
  toIntegerOrNull,
  toTextOrNull,
  typeName,
  Undefined,
  type Value,
  View,
} from './values.js';

/** len(); null if the value has no length. */
export function findLength(value: Value): number | null {
  const text = toTextOrNull(value);
  if (text !== null) return textLength(text);
  if (isList(value)) return value.length;
  if (value instanceof Tuple) return value.items.length;
  if (value instanceof Dict) return value.size;
  if (value instanceof Range) return value.length;
  if (value instanceof View) return value.dict.size;
  if (value instanceof Undefined) return 0;
  return value instanceof Opaque || value instanceof Callable ? value.length : null;
}

/** len(). Throws TypeError. */
export function requireLength(value: Value): number {
  const length = findLength(value);
  if (length !== null) return length;
  throw typeError(`object of type '${typeName(value)}' has no len()`);
}

/** obj[key]; MISSING if Python raises a TypeError, IndexError or KeyError. */
export function readSubscript(object: Value, key: Value): Value | typeof MISSING {
  if (object instanceof Dict) return isHashable(key) ? object.get(key) : MISSING;
  if (object instanceof Undefined) throw object.fault();
  const index = toIntegerOrNull(key);
  if (index === null) return MISSING;
  return itemAt(object, Number(index));
}

function isHashable(key: Value): boolean {
  return !isList(key) && !isUnhashable(key);
}

function itemAt(object: Value, index: number): Value | typeof MISSING {
  const items = sequenceItems(object);
  if (items === null) return MISSING;
  const at = index < 0 ? index + items.length : index;
  if (at < 0 || at >= items.length) return MISSING;
  if (items instanceof Range) return items.at(at);
  const item = defined(items[at]);
  return object instanceof Markup ? new Markup(item as string) : item;
}

/** Returns the items of a sequence; null for other values. */
function sequenceItems(object: Value): Range | string | readonly Value[] | null {
  const text = toTextOrNull(object);
  if (text !== null) return splitLetters(text) ?? text;
  if (isList(object)) return object;
  if (object instanceof Tuple) return object.items;
  return object instanceof Range ? object : null;
}

/** object[start:stop:step]. Throws TypeError and ValueError. */
export function slice(object: Value, bounds: readonly (Value | null)[]): Value {
  if (object instanceof Undefined) throw object.fault();
  const items = sequenceItems(object);
  if (items === null) {
    if (object instanceof Dict) throw typeError("unhashable type: 'slice'");
    throw typeError(`'${typeName(object)}' object is not subscriptable`);
  }
  const [start, stop, step] = sliceIndices(bounds, items.length);
  if (items instanceof Range) {
    const first = items.start + start * items.step;
    return new Range(first, items.start + stop * items.step, step * items.step);
  }
  if (toTextOrNull(object) === null) {
    const list = pickItems(items as readonly Value[], start, stop, step);
    return object instanceof Tuple ? new Tuple(list) : list;
  }
  const text = pickText(items as string | readonly string[], start, stop, step);
  return object instanceof Markup ? new Markup(text) : text;
}

function pickText(
  letters: string | readonly string[],
  start: number,
  stop: number,
  step: number,
): string {
  spendText(Math.abs(stop - start));
  if (step === 1 && typeof letters === 'string') return letters.slice(start, Math.max(start, stop));
  return pickItems(letters as readonly string[], start, stop, step).join('');
}

function pickItems<T>(items: readonly T[], start: number, stop: number, step: number): T[] {
  const list: T[] = [];
  for (let i = start; step > 0 ? i < stop : i > stop; i += step) {
    spend();
    list.push(defined(items[i]));
  }
  return list;
}

/** slice.indices() for a sequence of this length. */
function sliceIndices(bounds: readonly (Value | null)[], length: number): [number, number, number] {
  const [first = null, last = null, by = null] = bounds;
  const step = by === null ? 1 : requireBound(by);
  if (step === 0) throw valueError('slice step cannot be zero');
  const [low, high] = step > 0 ? [0, length] : [-1, length - 1];
  const clamp = (bound: Value | null, otherwise: number): number => {
    if (bound === null) return otherwise;
    const index = requireBound(bound);
    return Math.min(high, Math.max(low, index < 0 ? index + length : index));
  };
  return [clamp(first, step > 0 ? low : high), clamp(last, step > 0 ? high : low), step];
}

function requireBound(bound: Value): number {
  if (toIntegerOrNull(bound) !== null) return requireIndex(bound);
  throw typeError('slice indices must be integers or None or have an __index__ method');
}

/** reversed(); null if the value cannot be reversed. */
export function reverseSequence(value: Value): Generator | null {
  const names: Readonly<Record<string, string>> = {
    list: 'list_reverseiterator',
    range: 'range_iterator',
    dict: 'dict_reversekeyiterator',
    dict_keys: 'dict_reversekeyiterator',
    dict_values: 'dict_reversevalueiterator',
    dict_items: 'dict_reverseitemiterator',
  };
  const items = toReversible(value);
  if (items === null) return null;
  let at = items.length;
  const isMarkup = value instanceof Markup;
  const next = (): Value | typeof DONE => {
    if (at === 0) return DONE;
    const item = defined(items[--at]);
    return isMarkup ? new Markup(item as string) : item;
  };
  return new Generator(next, names[typeName(value)] ?? 'reversed');
}

function toReversible(value: Value): readonly Value[] | string | null {
  if (value instanceof Undefined) return [];
  if (value instanceof Dict) return value.keys();
  if (value instanceof View) return value.list();
  if (value instanceof Callable || value instanceof Opaque) return null;
  const items = sequenceItems(value);
  if (!(items instanceof Range)) return items;
  return Array.from({ length: items.length }, (_, i) => items.at(i));
}

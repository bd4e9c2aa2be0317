// Finds the texts and labels in rows, and the kind and names of the labels.

import { formatValue } from '../runtime/format-value.js';
import { dataError } from '../runtime/input-errors.js';
import { defined, required } from '../runtime/required.js';
import type { LocatedRow, Row } from './row-reader.js';

/** The one or two texts of a row. */
type RowTexts = readonly [first: string, second?: string];

/** Keys of texts in published datasets, pairs first. A row uses the first entry that it has. */
const TEXT_KEYS: readonly (readonly [string, string?])[] = [
  ['text', 'text_pair'],
  ['sentence1', 'sentence2'],
  ['premise', 'hypothesis'],
  ['question1', 'question2'],
  ['question', 'sentence'],
  ['query', 'passage'],
  ['text'],
  ['sentence'],
  ['content'],
];

const LABEL_KEYS = ['label', 'labels'];

/** Keys of texts and labels that the caller names. */
export interface RowKeys {
  /** Key of the text, or the keys of both texts. Default: "text", or the keys of known datasets. */
  textKey?: string | readonly [string, string];
  /** Key of the label. Default: "label" or "labels". */
  labelKey?: string;
}

/** Returns the text of a row, or both texts. Throws DS_DATA if no known key has a text. */
export function readTexts(located: LocatedRow, { textKey }: RowKeys): RowTexts {
  const { row, location } = located;
  const keyLists =
    typeof textKey === 'string' ? [[textKey] as const] : textKey ? [textKey] : TEXT_KEYS;
  const keys = keyLists.find((some) =>
    some.every((key) => key !== undefined && Object.hasOwn(row, key)),
  );
  const texts = keys?.map((key) => row[defined(key)]);
  if (texts?.every((text) => typeof text === 'string')) return texts as unknown as RowTexts;
  const expectedKeys = keyLists.map((some) => some.join(' and ')).join(', or ');
  throw dataError(
    location(),
    `strings under ${expectedKeys}`,
    formatRow(row),
    keyHint('keys: textKey (--text_column_names)', located),
  );
}

const NUMBER = /^\s*[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?\s*$/i;

/** Returns a number, or a list of numbers, for Parquet's 64-bit integers, which are bigints. */
export function plainNumber(value: unknown): unknown {
  if (typeof value === 'bigint') return Number(value);
  return Array.isArray(value) ? Array.from(value, plainNumber) : value;
}

/** A label and its location for errors. */
interface LocatedLabel {
  label: unknown;
  location(): string;
}

/**
 * Returns the labels of all rows. A column of numbers in CSV contains numbers, as in pandas. Throws
 * DS_DATA for a row without a label.
 */
export function readLabels(rows: readonly LocatedRow[], keys: RowKeys): LocatedLabel[] {
  const labels = rows.map((row) => ({
    label: plainNumber(readLabel(row, keys)),
    location: () => row.location(),
  }));
  const isText = rows.every((row) => row.isText);
  const empty = isText ? labels.find(({ label }) => label === '') : undefined;
  if (empty) throw dataError(empty.location(), 'a label', 'an empty value');
  if (!isText || !labels.every(({ label }) => NUMBER.test(String(label)))) return labels;
  return labels.map(({ label, location }) => ({ label: Number(label), location }));
}

/** Returns the label of a row, unchanged. Throws DS_DATA if the row has none. */
function readLabel(located: LocatedRow, { labelKey }: RowKeys): unknown {
  const { row, location } = located;
  const keys = labelKey === undefined ? LABEL_KEYS : [labelKey];
  const key = keys.find((key) => Object.hasOwn(row, key));
  if (key !== undefined) return row[key];
  throw dataError(
    location(),
    `a label under ${keys.join(' or ')}`,
    formatRow(row),
    keyHint('key: labelKey (--label_column_name)', located),
  );
}

/** Lists the keys, cut to a bound: a CSV file without a header has whole texts as keys. */
const formatRow = (row: Row): string =>
  `a row with ${Object.keys(row)
    .slice(0, 8)
    .map((key) => (key.length > 40 ? `${key.slice(0, 40)}..` : key))
    .join(', ')}`;

const keyHint = (keys: string, { isText = false }: LocatedRow): string =>
  `Name the ${keys}.${isText ? ' The first line of the file names its columns.' : ''}`;

/** Kind of labels: one class of a row, several classes, or values for regression. */
export type LabelKind = 'class' | 'classes' | 'value';

/** All kinds of labels. */
export const LABEL_KINDS: readonly LabelKind[] = ['class', 'classes', 'value'];

/** Names and kind of the labels of all rows. */
export interface LabelSet {
  readonly kind: LabelKind;
  /** Names in the order of the indices; one name for values. */
  readonly names: readonly string[];
  /** Whether each row has a 0 or 1 for each label, as in sets of transformers. Default: false. */
  readonly isMultiHot?: boolean;
}

/**
 * Returns the kind and the names of labels. Texts are names, which are sorted. Integers are class
 * indices. Lists contain several classes; lists of one length with only 0 and 1 contain a number
 * for each label. Other numbers are values. `given` overrides names and kind. Throws DS_DATA for a
 * mixture, for labels of another kind, and for a single class without given names.
 */
export function findLabels(
  rows: readonly { label: unknown; location(): string }[],
  given: { names?: readonly string[] | undefined; kind?: LabelKind | undefined },
): LabelSet {
  const lists = rows.filter(({ label }) => Array.isArray(label));
  const all = rows.flatMap(({ label, location }) =>
    (Array.isArray(label) ? label : [label]).map((value: unknown) => ({ one: value, location })),
  );
  const isText = ({ one }: { one: unknown }): boolean =>
    typeof one === 'string' || typeof one === 'boolean';
  const invalid = all.find(({ one }) => typeof one !== typeof all[0]?.one || one === null);
  const first = all[0];
  if (invalid || !first || (!isText(first) && typeof first.one !== 'number')) {
    const { one, location } = invalid ?? first ?? { one: undefined, location: () => 'the data' };
    throw dataError(location(), 'labels that are all strings, or all numbers', formatValue(one));
  }
  if (lists.length > 0 && lists.length < rows.length) {
    const single = required(rows.find(({ label }) => !Array.isArray(label)));
    throw dataError(
      single.location(),
      'a list of labels, as in other rows',
      formatValue(single.label),
    );
  }
  const isWhole = all.every(
    ({ one }) => isText({ one }) || (Number.isInteger(one) && (one as number) >= 0),
  );
  const kind = given.kind ?? (lists.length > 0 ? 'classes' : isWhole ? 'class' : 'value');
  if (kind === 'value') {
    const width = requireValues(rows, given.names);
    return { kind, names: given.names ?? numberedNames(width) };
  }
  requireLists(rows, kind);
  if (!isWhole) {
    const wrong = required(all.find(({ one }) => !Number.isInteger(one) || (one as number) < 0));
    throw dataError(wrong.location(), 'the number of a class, from 0', formatValue(wrong.one));
  }
  const width = kind === 'classes' ? multiHotWidth(rows) : null;
  const isMultiHot = width !== null && width === (given.names?.length ?? width);
  if (given.names) return { kind, names: given.names, isMultiHot };
  if (isMultiHot) return { kind, names: numberedNames(width), isMultiHot };
  if (!isText(first)) {
    const largest = all.find(({ one }) => (one as number) >= MAX_CLASSES);
    if (largest) {
      const hint = 'Write ids as strings: they become names.';
      const expected = `the number of a class below ${MAX_CLASSES}`;
      throw dataError(largest.location(), expected, formatValue(largest.one), hint);
    }
    const maximum = all.reduce((max, { one }) => Math.max(max, one as number), 0);
    return { kind, names: numberedNames(Math.max(2, maximum + 1)) };
  }
  const names = [...new Set(all.map(({ one }) => String(one)))].sort();
  if (names.length > 1 || kind === 'classes') return { kind, names };
  const hint = 'A classifier of one class has nothing to learn: check the key of the labels.';
  throw dataError('the data', 'at least two labels', `only ${formatValue(names[0])}`, hint);
}

/**
 * Maximum number of classes with integers as labels: the head has an output for each integer up to
 * the largest.
 */
const MAX_CLASSES = 2 ** 20;

const numberedNames = (count: number): string[] =>
  Array.from({ length: count }, (_, i) => `LABEL_${i}`);

/** Labels of all rows, with their locations. */
type LocatedLabels = readonly { label: unknown; location(): string }[];

/**
 * Returns the number of values of a row. Throws DS_DATA unless every label is a finite number, or a
 * list of as many as in the first row.
 */
function requireValues(rows: LocatedLabels, names: readonly string[] | undefined): number {
  const valuesOf = (label: unknown): unknown[] => (Array.isArray(label) ? label : [label]);
  const width = names?.length ?? valuesOf(required(rows[0]).label).length;
  const invalid = rows.filter(({ label }) => {
    const values = valuesOf(label);
    return values.length !== width || !values.every((value) => Number.isFinite(value));
  });
  // If one value of a CSV column is no number, all values of the column are strings.
  const [worst] = [...invalid.filter(({ label }) => Number.isNaN(Number(label))), ...invalid];
  if (!worst) return width;
  const expected = width === 1 ? 'a number as the label' : `a list of ${width} numbers`;
  const hint = 'Regression learns numbers. Other labels are classes.';
  throw dataError(worst.location(), expected, formatValue(worst.label), hint);
}

/** Throws DS_DATA for a list as one class, and for one class as a list. */
function requireLists(rows: LocatedLabels, kind: LabelKind): void {
  const isList = kind === 'classes';
  const invalid = rows.find(({ label }) => Array.isArray(label) !== isList);
  if (!invalid) return;
  const expected = isList ? 'a list of labels' : 'one label';
  throw dataError(invalid.location(), expected, formatValue(invalid.label));
}

/** Returns the length of lists that have a 0 or 1 for each label; null for other lists. */
function multiHotWidth(rows: LocatedLabels): number | null {
  const width = (required(rows[0]).label as unknown[]).length;
  const isHot = rows.every(
    ({ label }) =>
      (label as unknown[]).length === width &&
      (label as unknown[]).every((value) => value === 0 || value === 1),
  );
  return isHot && width > 1 ? width : null;
}

/** Returns the index of a label. Throws DS_DATA for an unknown label. */
export function labelIndex(label: unknown, { names }: LabelSet, location: () => string): number {
  const number = typeof label === 'number' ? label : names.indexOf(String(label));
  if (number >= 0 && number < names.length) return number;
  const listedNames = names.slice(0, 8).join(', ');
  throw dataError(location(), `one of ${names.length} labels: ${listedNames}`, formatValue(label));
}

/** Returns the target of a row: a class index as i32, or values or several classes as f32. */
export function encodeTarget(
  label: unknown,
  found: LabelSet,
  location: () => string,
): Int32Array | Float32Array {
  if (found.kind === 'class') return Int32Array.of(labelIndex(label, found, location));
  if (found.kind === 'value') {
    return Float32Array.from((Array.isArray(label) ? label : [label]) as number[]);
  }
  if (found.isMultiHot) return Float32Array.from(label as number[]);
  const several = new Float32Array(found.names.length);
  for (const value of label as unknown[]) several[labelIndex(value, found, location)] = 1;
  return several;
}

// The footer of a Parquet file: its schema, and where the column chunks of each row group lie.
// Every count and offset is checked against the size of the file.

import type { LogicalType, SchemaElement, SchemaTree } from 'hyparquet';
import { required } from '../../runtime/required.js';

import {
  countIn,
  listIn,
  optionalCount,
  type Struct,
  structIn,
  ThriftReader,
  textOf,
  type Value,
} from './thrift.js';

/** A column that holds values; `path` is the way from the root to it. */
interface Leaf {
  name: string;
  path: SchemaTree[];
  element: SchemaElement;
  /** Levels of values that are present, and of the innermost list. */
  definitions: number;
  repetitions: number;
}

/** The pages of one column in one row group. */
export interface ColumnChunk {
  leaf: Leaf;
  codec: string;
  /** Values and nulls in all pages. */
  values: number;
  start: number;
  end: number;
}

export interface RowGroup {
  rows: number;
  columns: ColumnChunk[];
  /** Bytes that the pages of the group may have after decompression. */
  byteLimit: number;
}

export interface Footer {
  tree: SchemaTree;
  groups: RowGroup[];
}

/** Reads bytes [start, end) of a file. */
export type ReadBytes = (start: number, end: number) => Uint8Array;

const MAGIC = 'PAR1';
const TAIL = 8;
const DEPTH = 32;

/**
 * Limits for one file. Run-length encoding and compression turn a few bytes into millions of
 * values. Each byte of the file stands for at most `perByte` values; small files get a fixed
 * number.
 */
const VALUES = { perFile: 2 ** 21, perGroup: 2 ** 17, perByte: 64 };
const BYTES = { perFile: 2 ** 24, perGroup: 2 ** 20, perByte: 256 };

function limitOf(limit: typeof VALUES, bytes: number, groups: number): number {
  return Math.max(limit.perFile / groups, limit.perGroup) + limit.perByte * bytes;
}

/** Throws an Error that names the first field that cannot be true. */
export function readFooter(size: number, read: ReadBytes): Footer {
  if (size < TAIL + MAGIC.length) throw new Error(`${size} bytes`);
  const tail = read(size - TAIL, size);
  const magic = Buffer.from(tail.subarray(4)).toString('latin1');
  if (magic !== MAGIC) throw new Error(`the last bytes ${JSON.stringify(magic)}, not ${MAGIC}`);
  const length = new DataView(tail.buffer, tail.byteOffset, TAIL).getUint32(0, true);
  const start = size - TAIL - length;
  if (start < MAGIC.length) throw new Error(`a footer of ${length} bytes in ${size}`);
  const bytes = read(start, size - TAIL);
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const footer = new ThriftReader(view, 0).struct();
  const elements = listIn(footer, 2, 'schema').map(schemaElement);
  const tree = schemaTree(elements);
  const leaves = leavesOf(tree);
  const groups = listIn(footer, 4, 'row groups');
  let left = start;
  const found = groups.map((group, i) => {
    const item = rowGroup(group as Struct, i, leaves, start);
    const stored = item.columns.reduce((sum, { start, end }) => sum + end - start, 0);
    left -= stored;
    if (left < 0) throw new Error(`row groups of more bytes than the file's ${size}`);
    const weight = item.columns.reduce(
      (sum, { values, leaf }) => sum + values * leaf.path.length,
      0,
    );
    const max = limitOf(VALUES, stored, groups.length);
    if (Math.max(item.rows, weight / 2) > max) {
      throw new Error(
        `row group ${i}: ${item.rows} rows in ${stored} bytes (write row groups of fewer rows)`,
      );
    }
    return { ...item, byteLimit: limitOf(BYTES, stored, groups.length) };
  });
  const rows = found.reduce((sum, group) => sum + group.rows, 0);
  const all = countIn(footer, 3, 'rows');
  if (rows !== all) throw new Error(`${all} rows, and ${rows} in row groups`);
  return { tree, groups: found };
}

/** Parquet's enumerations, in the order of their numbers. */
const TYPES = [
  'BOOLEAN',
  'INT32',
  'INT64',
  'INT96',
  'FLOAT',
  'DOUBLE',
  'BYTE_ARRAY',
  'FIXED_LEN_BYTE_ARRAY',
];
const REPETITIONS = ['REQUIRED', 'OPTIONAL', 'REPEATED'];
const CONVERTED = [
  ...['UTF8', 'MAP', 'MAP_KEY_VALUE', 'LIST', 'ENUM', 'DECIMAL', 'DATE', 'TIME_MILLIS'],
  ...['TIME_MICROS', 'TIMESTAMP_MILLIS', 'TIMESTAMP_MICROS', 'UINT_8', 'UINT_16', 'UINT_32'],
  ...['UINT_64', 'INT_8', 'INT_16', 'INT_32', 'INT_64', 'JSON', 'BSON', 'INTERVAL'],
];
const CODECS = ['UNCOMPRESSED', 'SNAPPY', 'GZIP', 'LZO', 'BROTLI', 'LZ4', 'ZSTD', 'LZ4_RAW'];

/** The name with this number; undefined if the field is absent. */
function nameIn(struct: Struct, id: number, names: readonly string[], what: string) {
  const number = optionalCount(struct, id, what);
  if (number === null) return undefined;
  const name = names[number];
  if (name === undefined) throw new Error(`${what}: ${number}`);
  return name;
}

function schemaElement(value: Value): SchemaElement {
  if (!(value instanceof Map)) throw new Error('schema: another type');
  const struct = value as Struct;
  const name = textOf(struct.get(4), 'name of a column');
  const number = (id: number, what: string) =>
    optionalCount(struct, id, `${what} of column ${name}`) ?? undefined;
  const element = {
    name,
    type: nameIn(struct, 1, TYPES, `type of column ${name}`),
    type_length: number(2, 'length'),
    repetition_type: nameIn(struct, 3, REPETITIONS, `repetition of column ${name}`),
    num_children: number(5, 'children'),
    converted_type: nameIn(struct, 6, CONVERTED, `converted type of column ${name}`),
    scale: number(7, 'scale'),
    precision: number(8, 'precision'),
    logical_type: struct.has(10) ? logicalType(structIn(struct, 10, 'logical type')) : undefined,
  } as SchemaElement;
  requireWidth(element);
  return element;
}

/** Fields of a logical type's union that the conversion of values reads. */
const LOGICAL: Readonly<Record<number, LogicalType['type']>> = {
  1: 'STRING',
  2: 'MAP',
  3: 'LIST',
  4: 'ENUM',
  5: 'DECIMAL',
  6: 'DATE',
  7: 'TIME',
  8: 'TIMESTAMP',
  10: 'INTEGER',
  11: 'NULL',
  12: 'JSON',
  13: 'BSON',
  14: 'UUID',
  15: 'FLOAT16',
  16: 'VARIANT',
  17: 'GEOMETRY',
  18: 'GEOGRAPHY',
};

function logicalType(union: Struct): LogicalType | undefined {
  const [id, value] = [...union][0] ?? [];
  const type = id === undefined ? undefined : LOGICAL[id];
  if (!type || !(value instanceof Map)) return undefined;
  if (type === 'VARIANT') throw new Error('columns of the type VARIANT are not supported');
  // The bytes of a geometry stay as they are.
  if (type === 'GEOMETRY' || type === 'GEOGRAPHY') return undefined;
  const fields = value as Struct;
  if (type === 'INTEGER') {
    return { type, bitWidth: Number(fields.get(1)), isSigned: fields.get(2) === true };
  }
  if (type === 'TIMESTAMP' || type === 'TIME') {
    const units = ['MILLIS', 'MICROS', 'NANOS'] as const;
    const unit = fields.get(2) instanceof Map ? [...(fields.get(2) as Struct).keys()][0] : 1;
    return {
      type,
      isAdjustedToUTC: fields.get(1) === true,
      unit: units[(unit ?? 1) - 1] ?? 'MILLIS',
    };
  }
  return { type } as LogicalType;
}

/** Bytes of a value of these logical types. */
const WIDTHS: Readonly<Record<string, number>> = { FLOAT16: 2, UUID: 16 };

function requireWidth({ name, type, type_length: length, logical_type: logical }: SchemaElement) {
  if (type !== 'FIXED_LEN_BYTE_ARRAY') return;
  const expected = logical && WIDTHS[logical.type];
  if (!length || (expected && length !== expected)) {
    throw new Error(`column ${name}: values of ${length ?? 'no'} bytes`);
  }
}

/** The schema as a tree. Each element states its number of children, which follow it. */
function schemaTree(elements: readonly SchemaElement[]): SchemaTree {
  let next = 0;
  const build = (path: string[], depth: number): SchemaTree => {
    const first = next;
    const element = elements[next++];
    if (!element) throw new Error(`schema: ${elements.length} elements, and children beyond them`);
    if (depth > DEPTH) throw new Error(`schema: columns ${depth} deep`);
    const columnPath = depth === 0 ? path : [...path, element.name];
    const count = element.num_children ?? 0;
    if (count > elements.length) throw new Error(`column ${element.name}: ${count} children`);
    if (count === 0 && depth > 0 && !element.type) {
      throw new Error(`column ${element.name}: no type`);
    }
    const children = Array.from({ length: count }, () => build(columnPath, depth + 1));
    requireNames(children);
    return { count: next - first, element, children, path: columnPath };
  };
  const tree = build([], 0);
  if (next !== elements.length)
    throw new Error(`schema: ${elements.length} elements, ${next} used`);
  return tree;
}

function requireNames(children: readonly SchemaTree[]): void {
  const names = new Set<string>();
  for (const { element } of children) {
    if (element.name === '__proto__') throw new Error('column __proto__: a reserved name');
    if (names.has(element.name)) throw new Error(`column ${element.name}: twice`);
    names.add(element.name);
  }
}

function leavesOf(tree: SchemaTree): Leaf[] {
  const leaves: Leaf[] = [];
  const visit = (node: SchemaTree, above: readonly SchemaTree[]): void => {
    const path = [...above, node];
    if (node.children.length > 0) {
      for (const child of node.children) visit(child, path);
      return;
    }
    const kinds = path.slice(1).map(({ element }) => element.repetition_type);
    leaves.push({
      name: node.path.join('.'),
      path,
      element: node.element,
      definitions: kinds.filter((kind) => kind !== 'REQUIRED').length,
      repetitions: kinds.filter((kind) => kind === 'REPEATED').length,
    });
  };
  for (const child of tree.children) visit(child, [tree]);
  return leaves;
}

function rowGroup(
  group: Struct,
  index: number,
  leaves: readonly Leaf[],
  end: number,
): Omit<RowGroup, 'byteLimit'> {
  const op = `row group ${index}`;
  if (!(group instanceof Map)) throw new Error(`${op}: another type`);
  const rows = countIn(group, 3, `rows of ${op}`);
  const chunks = listIn(group, 1, `columns of ${op}`);
  if (chunks.length !== leaves.length) {
    throw new Error(`${op}: ${chunks.length} columns, and ${leaves.length} in the schema`);
  }
  const columns = chunks.map((chunk, i) => {
    const column = columnChunk(chunk as Struct, required(leaves[i]), end);
    const { values, leaf } = column;
    if (leaf.repetitions === 0 ? values !== rows : values < rows) {
      throw new Error(`column ${leaf.name}: ${values} values in ${rows} rows`);
    }
    return column;
  });
  return { rows, columns };
}

function columnChunk(chunk: Struct, leaf: Leaf, end: number): ColumnChunk {
  const op = `column ${leaf.name}`;
  if (!(chunk instanceof Map)) throw new Error(`${op}: another type`);
  if (chunk.has(1)) throw new Error(`${op}: pages in another file`);
  const meta = structIn(chunk, 3, `metadata of ${op}`);
  const path = listIn(meta, 3, `path of ${op}`).map((part) => textOf(part, `path of ${op}`));
  if (path.join('.') !== leaf.name) throw new Error(`${op}: the pages of ${path.join('.')}`);
  const type = nameIn(meta, 1, TYPES, `type of ${op}`);
  if (type !== leaf.element.type) throw new Error(`${op}: pages of the type ${type}`);
  const codec = nameIn(meta, 4, CODECS, `codec of ${op}`) ?? 'UNCOMPRESSED';
  const values = countIn(meta, 5, `values of ${op}`);
  // Some writers leave the offset 0 where there are no pages.
  if (values === 0) return { leaf, codec, values, start: end, end };
  const data = countIn(meta, 9, `offset of ${op}`);
  const dictionary = optionalCount(meta, 11, `dictionary of ${op}`) ?? 0;
  // Some writers state 0 where there is no dictionary.
  const start = dictionary > 0 ? Math.min(dictionary, data) : data;
  const stop = start + countIn(meta, 7, `size of ${op}`);
  if (start < MAGIC.length || stop > end) {
    throw new Error(`${op}: bytes ${start} to ${stop}, of ${end}`);
  }
  return { leaf, codec, values, start, end: stop };
}

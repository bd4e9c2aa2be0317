// Reads the footer of a Parquet file: its schema and the location of column chunks. Checks every
// count and offset against the size of the file.

import type { LogicalType, SchemaElement, SchemaTree } from 'hyparquet';
import { required } from '../../runtime/required.js';

import {
  readCount,
  readList,
  readOptionalCount,
  readStruct,
  readText,
  type Struct,
  ThriftReader,
  type Value,
} from './thrift.js';

/** A column with values; `path` leads from the root of the schema to it. */
interface LeafColumn {
  name: string;
  path: SchemaTree[];
  element: SchemaElement;
  /** Maximum definition and repetition levels. */
  definitions: number;
  repetitions: number;
}

/** The pages of one column in one row group. */
export interface ColumnChunk {
  leaf: LeafColumn;
  codec: string;
  /** Number of values and nulls in all pages. */
  values: number;
  start: number;
  end: number;
}

export interface RowGroup {
  rows: number;
  columns: ColumnChunk[];
  /** Maximum bytes of the group's pages after decompression. */
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
 * Limits for one file. Run-length encoding and compression can expand a few bytes to millions of
 * values. Each byte of the file may give at most `perByte` values; small files get a fixed number.
 */
const VALUES = { perFile: 2 ** 21, perGroup: 2 ** 17, perByte: 64 };
const BYTES = { perFile: 2 ** 24, perGroup: 2 ** 20, perByte: 256 };

function computeLimit(limit: typeof VALUES, bytes: number, groups: number): number {
  return Math.max(limit.perFile / groups, limit.perGroup) + limit.perByte * bytes;
}

/** Reads and checks the footer. Throws an Error with the first invalid field. */
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
  const elements = readList(footer, 2, 'schema').map(readSchemaElement);
  const tree = buildSchemaTree(elements);
  const leaves = listLeaves(tree);
  const groups = readList(footer, 4, 'row groups');
  let nextStart = start;
  const checkedGroups = groups.map((group, i) => {
    const item = readRowGroup(group as Struct, i, leaves, start);
    const stored = item.columns.reduce((sum, { start, end }) => sum + end - start, 0);
    nextStart -= stored;
    if (nextStart < 0) throw new Error(`row groups of more bytes than the file's ${size}`);
    const weight = item.columns.reduce(
      (sum, { values, leaf }) => sum + values * leaf.path.length,
      0,
    );
    const max = computeLimit(VALUES, stored, groups.length);
    if (Math.max(item.rows, weight / 2) > max) {
      throw new Error(
        `row group ${i}: ${item.rows} rows in ${stored} bytes (write row groups of fewer rows)`,
      );
    }
    return { ...item, byteLimit: computeLimit(BYTES, stored, groups.length) };
  });
  const rows = checkedGroups.reduce((sum, group) => sum + group.rows, 0);
  const all = readCount(footer, 3, 'rows');
  if (rows !== all) throw new Error(`${all} rows, and ${rows} in row groups`);
  return { tree, groups: checkedGroups };
}

/** Parquet's enumerations, indexed by their numbers. */
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
  'UTF8',
  'MAP',
  'MAP_KEY_VALUE',
  'LIST',
  'ENUM',
  'DECIMAL',
  'DATE',
  'TIME_MILLIS',
  'TIME_MICROS',
  'TIMESTAMP_MILLIS',
  'TIMESTAMP_MICROS',
  'UINT_8',
  'UINT_16',
  'UINT_32',
  'UINT_64',
  'INT_8',
  'INT_16',
  'INT_32',
  'INT_64',
  'JSON',
  'BSON',
  'INTERVAL',
];
const CODECS = ['UNCOMPRESSED', 'SNAPPY', 'GZIP', 'LZO', 'BROTLI', 'LZ4', 'ZSTD', 'LZ4_RAW'];

/** Returns the name for an enumeration field; undefined if the field is absent. */
function readEnumName(struct: Struct, id: number, names: readonly string[], what: string) {
  const number = readOptionalCount(struct, id, what);
  if (number === null) return undefined;
  const name = names[number];
  if (name === undefined) throw new Error(`${what}: ${number}`);
  return name;
}

function readSchemaElement(value: Value): SchemaElement {
  if (!(value instanceof Map)) throw new Error('schema: another type');
  const struct = value as Struct;
  const name = readText(struct.get(4), 'name of a column');
  const number = (id: number, what: string) =>
    readOptionalCount(struct, id, `${what} of column ${name}`) ?? undefined;
  const element = {
    name,
    type: readEnumName(struct, 1, TYPES, `type of column ${name}`),
    type_length: number(2, 'length'),
    repetition_type: readEnumName(struct, 3, REPETITIONS, `repetition of column ${name}`),
    num_children: number(5, 'children'),
    converted_type: readEnumName(struct, 6, CONVERTED, `converted type of column ${name}`),
    scale: number(7, 'scale'),
    precision: number(8, 'precision'),
    logical_type: struct.has(10)
      ? readLogicalType(readStruct(struct, 10, 'logical type'))
      : undefined,
  } as SchemaElement;
  requireWidth(element);
  return element;
}

/** Logical types that the conversion of values uses, by field number of the union. */
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

function readLogicalType(union: Struct): LogicalType | undefined {
  const [id, value] = [...union][0] ?? [];
  const type = id === undefined ? undefined : LOGICAL[id];
  if (!type || !(value instanceof Map)) return undefined;
  if (type === 'VARIANT') throw new Error('columns of the type VARIANT are not supported');
  // Geometry values stay bytes.
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

/** Required width in bytes of these logical types. */
const WIDTHS: Readonly<Record<string, number>> = { FLOAT16: 2, UUID: 16 };

function requireWidth({ name, type, type_length: length, logical_type: logical }: SchemaElement) {
  if (type !== 'FIXED_LEN_BYTE_ARRAY') return;
  const expected = logical && WIDTHS[logical.type];
  if (!length || (expected && length !== expected)) {
    throw new Error(`column ${name}: values of ${length ?? 'no'} bytes`);
  }
}

/**
 * Builds the schema tree. The children of an element follow it, and each element has its number of
 * children.
 */
function buildSchemaTree(elements: readonly SchemaElement[]): SchemaTree {
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

function listLeaves(tree: SchemaTree): LeafColumn[] {
  const leaves: LeafColumn[] = [];
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

function readRowGroup(
  group: Struct,
  index: number,
  leaves: readonly LeafColumn[],
  end: number,
): Omit<RowGroup, 'byteLimit'> {
  const op = `row group ${index}`;
  if (!(group instanceof Map)) throw new Error(`${op}: another type`);
  const rows = readCount(group, 3, `rows of ${op}`);
  const chunks = readList(group, 1, `columns of ${op}`);
  if (chunks.length !== leaves.length) {
    throw new Error(`${op}: ${chunks.length} columns, and ${leaves.length} in the schema`);
  }
  const columns = chunks.map((chunk, i) => {
    const column = readColumnChunk(chunk as Struct, required(leaves[i]), end);
    const { values, leaf } = column;
    if (leaf.repetitions === 0 ? values !== rows : values < rows) {
      throw new Error(`column ${leaf.name}: ${values} values in ${rows} rows`);
    }
    return column;
  });
  return { rows, columns };
}

function readColumnChunk(chunk: Struct, leaf: LeafColumn, end: number): ColumnChunk {
  const op = `column ${leaf.name}`;
  if (!(chunk instanceof Map)) throw new Error(`${op}: another type`);
  if (chunk.has(1)) throw new Error(`${op}: pages in another file`);
  const meta = readStruct(chunk, 3, `metadata of ${op}`);
  const path = readList(meta, 3, `path of ${op}`).map((part) => readText(part, `path of ${op}`));
  if (path.join('.') !== leaf.name) throw new Error(`${op}: the pages of ${path.join('.')}`);
  const type = readEnumName(meta, 1, TYPES, `type of ${op}`);
  if (type !== leaf.element.type) throw new Error(`${op}: pages of the type ${type}`);
  const codec = readEnumName(meta, 4, CODECS, `codec of ${op}`) ?? 'UNCOMPRESSED';
  const values = readCount(meta, 5, `values of ${op}`);
  // Some writers set the offset to 0 if there are no pages.
  if (values === 0) return { leaf, codec, values, start: end, end };
  const data = readCount(meta, 9, `offset of ${op}`);
  const dictionary = readOptionalCount(meta, 11, `dictionary of ${op}`) ?? 0;
  // Some writers set 0 if there is no dictionary.
  const start = dictionary > 0 ? Math.min(dictionary, data) : data;
  const stop = start + readCount(meta, 7, `size of ${op}`);
  if (start < MAGIC.length || stop > end) {
    throw new Error(`${op}: bytes ${start} to ${stop}, of ${end}`);
  }
  return { leaf, codec, values, start, end: stop };
}

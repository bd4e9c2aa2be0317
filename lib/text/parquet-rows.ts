// Reads rows of Parquet files, one row group at a time.

import type { DecodedArray, ParquetParsers, SchemaTree } from 'hyparquet/src/types.js';
import { PositionalFile } from '../data/positional-file.js';
import { DsError } from '../errors.js';
import { dataError } from '../runtime/input-errors.js';
import { errorMessage } from '../runtime/system-error.js';
import {
  type ColumnChunk,
  type Footer,
  type ReadBytes,
  type RowGroup,
  readFooter,
} from './parquet/footer.js';
import { readColumn } from './parquet/pages.js';

/**
 * Returns the index of the first row of each row group, then the number of rows. Throws DS_DATA for
 * a damaged footer.
 */
export function readGroupStarts(path: string): Promise<number[]> {
  return withFooter(path, async ({ groups }) => {
    let rows = 0;
    return [0, ...groups.map((group) => (rows += group.rows))];
  });
}

/**
 * Returns rows [start, end) as objects; lists and structs become arrays and objects. Throws DS_DATA
 * for a damaged file, or a codec that is not supported.
 */
export function readParquetRows(path: string, start: number, end: number): Promise<object[]> {
  return withFooter(path, async ({ tree, groups }, read) => {
    const objects: object[] = [];
    let first = 0;
    for (const group of groups) {
      const last = first + group.rows;
      if (first < end && start < last) {
        const rows = await readRowGroup(group, tree, read);
        for (let i = Math.max(start, first); i < Math.min(end, last); ++i) {
          objects.push(rows[i - first] as object);
        }
      }
      first = last;
    }
    return objects;
  });
}

async function withFooter<T>(
  path: string,
  body: (footer: Footer, read: ReadBytes) => Promise<T>,
): Promise<T> {
  const file = new PositionalFile(path);
  const read: ReadBytes = (start, end) => new Uint8Array(file.read(start, end - start));
  try {
    return await body(readFooter(file.bytes, read), read);
  } catch (cause) {
    if (cause instanceof DsError) throw cause;
    throw dataError(
      path,
      'a Parquet file',
      errorMessage(cause),
      'Copy or download it again: it may be truncated.',
    );
  } finally {
    file.close();
  }
}

// Reads the rows of one row group. hyparquet converts values and builds lists and structs. pages.ts
// replaces its page reader, which trusts sizes and counts of the file.

const utf8 = new TextDecoder('utf-8', { fatal: true });

/**
 * Returns the rows of a group as objects. Throws an Error with the column and the byte of the
 * damage.
 */
async function readRowGroup(
  { rows, columns, byteLimit }: RowGroup,
  tree: SchemaTree,
  read: ReadBytes,
): Promise<Record<string, unknown>[]> {
  if (rows === 0) return [];
  const { convert, DEFAULT_PARSERS } = await import('hyparquet/src/convert.js');
  const { assembleLists, assembleNested } = await import('hyparquet/src/assemble.js');
  let spent = 0;
  const spend = (bytes: number): void => {
    spent += bytes;
    if (spent > byteLimit) {
      throw new Error(`more than ${Math.floor(byteLimit)} bytes after decompression`);
    }
  };
  const arrays = new Map<string, DecodedArray>();
  for (const chunk of columns) {
    const parsers = columnParsers(chunk, DEFAULT_PARSERS);
    const bytes = read(chunk.start, chunk.end);
    const columnValues = readColumn(bytes, chunk, rows, { convert, parsers, spend });
    const { leaf } = chunk;
    const { definitions, repetitions, values } = columnValues;
    arrays.set(leaf.name, assembleLists([], definitions, repetitions, values, leaf.path));
  }
  const childColumns = tree.children.map((child): [string, DecodedArray] => {
    const { name } = child.element;
    if (child.children.length > 0) assembleNested(arrays, child, DEFAULT_PARSERS);
    const data = arrays.get(name);
    if (data?.length !== rows) throw new Error(`column ${name}: ${data?.length} of ${rows} rows`);
    return [name, data];
  });
  return Array.from({ length: rows }, (_, i) =>
    Object.fromEntries(childColumns.map(([name, data]) => [name, data[i]])),
  );
}

/**
 * Returns the parsers of a column. Strings must be UTF-8; columns of plain bytes may hold anything.
 */
function columnParsers({ leaf }: ColumnChunk, defaults: ParquetParsers): ParquetParsers {
  const { converted_type: converted, logical_type: logical } = leaf.element;
  const isText = converted === 'UTF8' || logical?.type === 'STRING';
  return {
    ...defaults,
    jsonFromBytes: (bytes) => bytes && JSON.parse(utf8.decode(bytes)),
    stringFromBytes: (bytes) => {
      if (!bytes) return bytes;
      try {
        return utf8.decode(bytes);
      } catch (cause) {
        if (isText) throw cause;
        return bytes;
      }
    },
  };
}

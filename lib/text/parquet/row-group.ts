// The rows of one row group as objects. hyparquet converts values and builds lists and structs; its
// page reader trusts sizes and counts of the file, so pages.ts replaces it.
import type { DecodedArray, ParquetParsers, SchemaTree } from 'hyparquet/src/types.js';

import type { ColumnChunk, ReadBytes, RowGroup } from './footer.js';
import { readColumn } from './pages.js';

const utf8 = new TextDecoder('utf-8', { fatal: true });

/** Throws an Error that names the column and the byte of damage. */
export async function readRowGroup(
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
    const parsers = parsersOf(chunk, DEFAULT_PARSERS);
    const bytes = read(chunk.start, chunk.end);
    const found = readColumn(bytes, chunk, rows, { convert, parsers, spend });
    const { leaf } = chunk;
    const { definitions, repetitions, values } = found;
    arrays.set(leaf.name, assembleLists([], definitions, repetitions, values, leaf.path));
  }
  const whole = tree.children.map((child): [string, DecodedArray] => {
    const { name } = child.element;
    if (child.children.length > 0) assembleNested(arrays, child, DEFAULT_PARSERS);
    const data = arrays.get(name);
    if (data?.length !== rows) throw new Error(`column ${name}: ${data?.length} of ${rows} rows`);
    return [name, data];
  });
  return Array.from({ length: rows }, (_, i) =>
    Object.fromEntries(whole.map(([name, data]) => [name, data[i]])),
  );
}

/** Strings are UTF-8; bytes of columns that do not claim to be text may be anything. */
function parsersOf({ leaf }: ColumnChunk, defaults: ParquetParsers): ParquetParsers {
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

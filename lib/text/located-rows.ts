// Reads the rows of a small dataset into memory, from files or from the caller.
import { formatValue } from '../runtime/format-value.js';
import { argumentError, dataError, valueError } from '../runtime/input-errors.js';
import { isObject } from '../runtime/is-object.js';
import { readColumns, renameColumns } from './columns.js';
import { divideFiles, findFiles } from './row-files.js';
import { type LocatedRow, type Row, readRows } from './row-reader.js';

/** Source of rows: either files or a list. */
export interface RowSource {
  /** Paths of files and folders, and patterns. */
  files?: string | readonly string[];
  /** Rows of the caller, instead of files. */
  rows?: Iterable<Row> | AsyncIterable<Row>;
  /**
   * New names of columns by their names in the rows, such as { question: 'prompt' }. Every row
   * must have these columns. Default: none.
   */
  columns?: Readonly<Record<string, string>>;
}

const isIterable = (value: unknown): boolean =>
  typeof value === 'object' &&
  value !== null &&
  (Symbol.iterator in value || Symbol.asyncIterator in value);

/** Returns all rows with their locations. Throws DS_DATA for unreadable files, and DS_ARGUMENT. */
export async function readLocatedRows(
  op: string,
  { files, rows, columns: renamed }: RowSource,
): Promise<LocatedRow[]> {
  if ((files === undefined) === (rows === undefined)) {
    throw argumentError(op, 'either `files` or `rows`', files === undefined ? 'neither' : 'both');
  }
  const columns = readColumns(`${op} columns`, renamed);
  const located: LocatedRow[] = [];
  if (rows !== undefined) {
    if (!isIterable(rows)) throw valueError(`${op} rows`, 'a list or an iterable of rows', rows);
    let i = 0;
    for await (const row of rows) {
      const location = i++;
      if (!isObject(row)) throw dataError(`row ${location}`, 'an object', formatValue(row));
      located.push(renameColumns({ row, location: () => `row ${location}` }, columns));
    }
    return located;
  }
  for (const part of await divideFiles(findFiles(op, files), false, columns)) {
    for await (const row of readRows(part)) located.push(row);
  }
  return located;
}

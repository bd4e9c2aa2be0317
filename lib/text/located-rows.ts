// Reads the rows of a small dataset into memory: from files, or from the caller's
// list or stream.
import { argumentError } from '../runtime/input-errors.js';
import { findFiles, partsOf } from './row-files.js';
import { type LocatedRow, type Row, rowsOf } from './row-reader.js';

/** Source of rows: either files or a list. */
export interface RowSource {
  /** Paths of files and folders, and patterns. */
  files?: string | readonly string[];
  /** Rows of the caller, in place of files. */
  rows?: Iterable<Row> | AsyncIterable<Row>;
}

/**
 * Returns all rows with their locations. Throws DS_DATA for files that it cannot read; DS_ARGUMENT.
 */
export async function locatedRows(op: string, { files, rows }: RowSource): Promise<LocatedRow[]> {
  if ((files === undefined) === (rows === undefined)) {
    throw argumentError(op, 'either `files` or `rows`', files === undefined ? 'neither' : 'both');
  }
  const found: LocatedRow[] = [];
  if (rows) {
    let i = 0;
    for await (const row of rows) {
      const place = i++;
      found.push({ row, location: () => `row ${place}` });
    }
    return found;
  }
  for (const part of await partsOf(findFiles(op, files), false)) {
    for await (const row of rowsOf(part)) found.push(row);
  }
  return found;
}

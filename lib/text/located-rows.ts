// Rows of a small dataset in memory: from files, or as the caller gives them.
import { refused } from '../runtime/refused.js';
import { findFiles, partsOf } from './row-files.js';
import { type LocatedRow, type Row, rowsOf } from './row-reader.js';

/** Where rows come from: one of the two. */
export interface RowSource {
  /** Files, folders and patterns. */
  files?: string | readonly string[];
  /** Rows in memory, in place of files. */
  rows?: readonly Row[];
}

/** All rows with their places. Throws DS_DATA for files that it cannot read, DS_ARGUMENT. */
export async function locatedRows(op: string, { files, rows }: RowSource): Promise<LocatedRow[]> {
  if ((files === undefined) === (rows === undefined)) {
    throw refused(op, 'either `files` or `rows`', files === undefined ? 'neither' : 'both');
  }
  if (rows) return rows.map((row, i) => ({ row, location: () => `row ${i}` }));
  const found: LocatedRow[] = [];
  for (const part of await partsOf(findFiles(op, files), false)) {
    for await (const row of rowsOf(part)) found.push(row);
  }
  return found;
}

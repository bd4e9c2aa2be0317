// Rows of Parquet files, one row group at a time.

import { PositionalFile } from '../data/positional-file.js';
import { DsError } from '../errors.js';
import { dataError } from '../runtime/refused.js';
import { errorMessage } from '../runtime/system-error.js';
import { type Footer, type ReadBytes, readFooter } from './parquet/footer.js';
import { readRowGroup } from './parquet/row-group.js';

/** The first row of each row group, then the number of all rows. Throws DS_DATA. */
export function parquetGroups(path: string): Promise<number[]> {
  return withFooter(path, async ({ groups }) => {
    let rows = 0;
    return [0, ...groups.map((group) => (rows += group.rows))];
  });
}

/** Rows [start, end) as objects; lists and structs are arrays and objects. Throws DS_DATA. */
export function parquetRows(path: string, start: number, end: number): Promise<object[]> {
  return withFooter(path, async ({ tree, groups }, read) => {
    const found: object[] = [];
    let first = 0;
    for (const group of groups) {
      const last = first + group.rows;
      if (first < end && start < last) {
        const rows = await readRowGroup(group, tree, read);
        for (let i = Math.max(start, first); i < Math.min(end, last); ++i) {
          found.push(rows[i - first] as object);
        }
      }
      first = last;
    }
    return found;
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
    throw dataError(path, 'a Parquet file', errorMessage(cause), 'Is it whole?');
  } finally {
    file.close();
  }
}

// Rows of Parquet files, a row group at a time. The reader is an ES module, hence imported when it
// is needed.

import { dataError } from '../runtime/refused.js';
import { requirePages } from './parquet-pages.js';

/** The numbers of the first rows of the row groups and, last, of all rows. Throws DS_DATA. */
export function parquetGroups(path: string): Promise<number[]> {
  return reading(path, async () => {
    const { metadata } = await open(path);
    let rows = 0;
    const ends = metadata.row_groups.map((group) => (rows += Number(group.num_rows)));
    return [0, ...ends];
  });
}

/** Rows [start, end) as objects; lists and structs are arrays and objects. Throws DS_DATA. */
export function parquetRows(path: string, start: number, end: number): Promise<object[]> {
  return reading(path, async () => {
    const { parquetReadObjects } = await import('hyparquet');
    const { compressors } = await import('hyparquet-compressors');
    const { file, metadata } = await open(path);
    await requirePages(file, metadata, start, end);
    return parquetReadObjects({ file, metadata, rowStart: start, rowEnd: end, compressors });
  });
}

async function open(path: string) {
  const { asyncBufferFromFile, parquetMetadataAsync } = await import('hyparquet');
  const file = await asyncBufferFromFile(path);
  return { file, metadata: await parquetMetadataAsync(file) };
}

async function reading<T>(path: string, body: () => Promise<T>): Promise<T> {
  try {
    return await body();
  } catch (cause) {
    throw dataError(path, 'a Parquet file', (cause as Error).message, 'Is it whole?');
  }
}

// Whether the pages of a Parquet file's columns are as their headers say: the reader goes by these,
// and with a damaged one it would read for ever.
import type { AsyncBuffer, ColumnMetaData, FileMetaData, PageHeader } from 'hyparquet';

/** Bytes in which a header is looked for first; those with long statistics have more. */
const HEADER = 2 ** 16;

/** Bytes of a file that were read at once: headers of small pages lie in them side by side. */
interface Window {
  from: number;
  bytes: ArrayBuffer;
}

/** The header of a page, and where the page itself begins. */
interface Found {
  header: PageHeader;
  at: number;
}

/**
 * Reads the headers of the pages in which rows [start, end) lie. Throws an Error that names the
 * column and the place of one that cannot be.
 */
export async function requirePages(
  file: AsyncBuffer,
  { row_groups: groups }: FileMetaData,
  start: number,
  end: number,
): Promise<void> {
  let first = 0;
  for (const { num_rows: rows, columns } of groups) {
    const last = first + Number(rows);
    if (first < end && start < last) {
      for (const { meta_data: column } of columns) if (column) await requireColumn(file, column);
    }
    first = last;
  }
}

async function requireColumn(file: AsyncBuffer, column: ColumnMetaData): Promise<void> {
  const { dictionary_page_offset: dictionary, data_page_offset: data, num_values: all } = column;
  const start = Number(dictionary || data);
  const end = start + Number(column.total_compressed_size);
  if (!(start >= 0 && start <= end && end <= file.byteLength)) {
    throw damaged(column, start, `bytes to ${end} of ${file.byteLength}`);
  }
  const headerAt = headerReader(file, end);
  let values = 0;
  for (let at = start; at < end - 1 && values < Number(all); ) {
    const found = await headerAt(at);
    const { compressed_page_size: size, uncompressed_page_size: whole } = found.header;
    if (!isCount(size) || !isCount(whole) || found.at + size > end) {
      throw damaged(column, at, `a page of ${size} bytes for ${whole}, of ${end - found.at}`);
    }
    values += valuesIn(column, found.header, at);
    if (values > Number(all)) throw damaged(column, at, `${values} values and more, of ${all}`);
    at = found.at + size;
  }
}

/** Values of a page of data; 0 of a dictionary. */
function valuesIn(column: ColumnMetaData, header: PageHeader, at: number): number {
  const { data_page_header, data_page_header_v2: second, dictionary_page_header } = header;
  const page = data_page_header ?? second ?? dictionary_page_header;
  if (!page) return 0; // The reader refuses it by its type.
  const levels = second
    ? [second.definition_levels_byte_length, second.repetition_levels_byte_length]
    : [];
  const counts = [page.num_values, ...(second ? [second.num_rows] : []), ...levels];
  const inLevels = levels.reduce((sum, length) => sum + length, 0);
  if (!counts.every(isCount) || inLevels > header.compressed_page_size) {
    throw damaged(column, at, `a page of ${counts.join(', ')} values, rows and bytes of levels`);
  }
  return page === dictionary_page_header ? 0 : page.num_values;
}

/** Reads headers before `end`, in one direction. */
function headerReader(file: AsyncBuffer, end: number): (at: number) => Promise<Found> {
  let window: Window = { from: 0, bytes: new ArrayBuffer(0) };
  return async (at) => {
    const { parquetHeader } = await import('hyparquet/src/column.js');
    const found = (): Found => {
      const reader = { view: new DataView(window.bytes, at - window.from), offset: 0 };
      const header = parquetHeader(reader);
      return { header, at: at + reader.offset };
    };
    const read = async (until: number): Promise<Found> => {
      window = { from: at, bytes: await file.slice(at, until) };
      return found();
    };
    if (at < window.from + window.bytes.byteLength) {
      try {
        return found();
      } catch {
        // It ends behind the window, or is none.
      }
    }
    const near = Math.min(end, at + HEADER);
    return read(near).catch((error) => (near < end ? read(end) : Promise.reject(error)));
  };
}

const isCount = (value: unknown): value is number =>
  typeof value === 'number' && Number.isSafeInteger(value) && value >= 0;

function damaged({ path_in_schema: path }: ColumnMetaData, at: number, got: string): Error {
  return new Error(`column ${path.join('.')}, byte ${at}: ${got}`);
}

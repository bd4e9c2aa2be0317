// Parquet files for tests: whole ones of hyparquet-writer, and small ones built field by field.
import { execFileSync } from 'node:child_process';
import { packageRoot } from '../../lib/runtime/package-root.js';

/** A field of a Thrift struct: a number, a flag, bytes, a struct, or a list of structs or texts. */
export type Field = number | boolean | string | Uint8Array | Fields | readonly (Fields | string)[];
export type Fields = { [id: number]: Field };

const varint = (value: number): number[] =>
  value < 128 ? [value] : [(value % 128) | 128, ...varint(Math.floor(value / 128))];
const zigzag = (value: number): number[] => varint(value < 0 ? -2 * value - 1 : 2 * value);

function fieldOf(value: Field): [type: number, bytes: number[]] {
  if (typeof value === 'boolean') return [value ? 1 : 2, []];
  if (typeof value === 'number') return [Math.abs(value) < 2 ** 31 ? 5 : 6, zigzag(value)];
  if (typeof value === 'string') return fieldOf(Buffer.from(value));
  if (value instanceof Uint8Array) return [8, [...varint(value.length), ...value]];
  if (!Array.isArray(value)) return [12, thrift(value as Fields)];
  const items = (value as Field[]).map(fieldOf);
  const type = items[0]?.[0] ?? 12;
  const head =
    items.length < 15 ? [(items.length << 4) | type] : [0xf0 | type, ...varint(items.length)];
  return [9, [...head, ...items.flatMap(([, bytes]) => bytes)]];
}

/** A struct of Thrift's compact protocol. */
export function thrift(fields: Fields): number[] {
  const bytes = Object.entries(fields).flatMap(([id, value]) => {
    const [type, own] = fieldOf(value);
    return [type, ...zigzag(Number(id)), ...own];
  });
  return [...bytes, 0];
}

/** Numbers of the format's enumerations. */
export const CODEC = { none: 0, snappy: 1, gzip: 2, brotli: 4, lz4: 5, zstd: 6, lz4raw: 7 };
export const BYTE_ARRAY = 6;
const [REQUIRED, UTF8] = [0, 0];

/** Options of smallFile(). */
export interface SmallFile {
  page: Uint8Array;
  /** Defaults to the bytes of the page. */
  size?: number;
  whole?: number;
  values?: number;
  rows?: number;
  groups?: number;
  codec?: number;
  encoding?: number;
  type?: number;
  repetition?: number;
  /** The offset of the pages in the footer. */
  offset?: number;
}

/** A file of one column `text` with one page of data in each row group. */
export function smallFile(options: SmallFile): Buffer {
  const { page, values = 1, rows = values, groups = 1, codec = CODEC.none } = options;
  const { size = page.length, whole = page.length, encoding = 0, type = BYTE_ARRAY } = options;
  const { repetition = REQUIRED } = options;
  const pageBytes = [
    ...thrift({ 1: 0, 2: whole, 3: size, 5: { 1: values, 2: encoding, 3: 3, 4: 3 } }),
    ...page,
  ];
  const column = (start: number): Fields => ({
    2: start,
    3: {
      1: type,
      3: ['text'],
      4: codec,
      5: values,
      6: whole,
      7: pageBytes.length,
      9: options.offset ?? start,
    },
  });
  const leaf: Fields = { 1: type, 3: repetition, 4: 'text' };
  if (type === BYTE_ARRAY) leaf[6] = UTF8;
  const groupOf = (i: number): Fields => ({
    1: [column(4 + i * pageBytes.length)],
    2: pageBytes.length,
    3: rows,
  });
  const footer = thrift({
    1: 1,
    2: [{ 4: 'schema', 5: 1 }, leaf],
    3: rows * groups,
    4: Array.from({ length: groups }, (_, i) => groupOf(i)),
  });
  const length = Buffer.alloc(4);
  length.writeUInt32LE(footer.length);
  return Buffer.concat([
    Buffer.from('PAR1'),
    ...Array.from({ length: groups }, () => Buffer.from(pageBytes)),
    Buffer.from(footer),
    length,
    Buffer.from('PAR1'),
  ]);
}

/** The bytes of one string as PLAIN stores them. */
export function plain(...texts: string[]): Buffer {
  return Buffer.concat(
    texts.flatMap((text) => {
      const length = Buffer.alloc(4);
      length.writeUInt32LE(Buffer.byteLength(text));
      return [length, Buffer.from(text)];
    }),
  );
}

/** A frame of Zstandard with stored blocks: Node 20 has no compressor. */
const STORED_ZSTD = `(input) => {
  const blocks = [];
  for (let at = 0; at < input.length || at === 0; at += 65536) {
    const part = input.subarray(at, at + 65536);
    const head = Buffer.alloc(3);
    head.writeUIntLE((part.length << 3) | Number(at + 65536 >= input.length), 0, 3);
    blocks.push(head, part);
  }
  const size = Buffer.alloc(4);
  size.writeUInt32LE(input.length);
  return Buffer.concat([Buffer.from([0x28, 0xb5, 0x2f, 0xfd, 0xa0]), size, ...blocks]);
}`;

/** One block of LZ4 that holds literals. */
const STORED_LZ4 = `(input) => {
  if (input.length < 15) return Buffer.concat([Buffer.from([input.length << 4]), input]);
  const rest = input.length - 15;
  const more = Buffer.alloc(Math.floor(rest / 255), 255);
  return Buffer.concat([Buffer.from([0xf0]), more, Buffer.from([rest % 255]), input]);
}`;

/**
 * Writes files by hyparquet-writer, which is an ES module, hence in another process. `columns` is
 * code for the columns of each path.
 */
export function writeWhole(
  files: readonly { path: string; columns: string; codec: string }[],
): void {
  const calls = files.map(
    ({ path, columns, codec }) => `parquetWriteFile({
      filename: ${JSON.stringify(path)}, codec: '${codec}', compressors, pageSize: 512,
      rowGroupSize: 40, columnData: ${columns} });`,
  );
  const script = `Promise.all([import('hyparquet-writer'), import('zlib')]).then(
    ([{ parquetWriteFile }, { gzipSync, brotliCompressSync }]) => {
      const compressors = { GZIP: gzipSync, BROTLI: brotliCompressSync, ZSTD: ${STORED_ZSTD},
        LZ4_RAW: ${STORED_LZ4}, LZ4: ${STORED_LZ4} };
      ${calls.join('\n')}
    })`;
  execFileSync(process.execPath, ['-e', script], { cwd: packageRoot() });
}

// The reader returns the exact values of each codec, encoding and type of hyparquet-writer.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';

import { decodeZstd } from '../../lib/text/parquet/zstd.js';
import { readGroupStarts, readParquetRows } from '../../lib/text/parquet-rows.js';
import { emptyFolder, removeFolders } from './folders.js';
import { writeWhole } from './parquet-files.js';

const folder = emptyFolder();
afterAll(removeFolders);

const ROWS = 100;
const list = (body: string): string => `Array.from({ length: ${ROWS} }, (_, i) => ${body})`;
const COLUMNS: Readonly<Record<string, { type: string; data: string; encodings: string[] }>> = {
  text: {
    type: 'STRING',
    data: list("'row ' + (i % 7)"),
    encodings: ['PLAIN', 'RLE_DICTIONARY', 'DELTA_LENGTH_BYTE_ARRAY', 'DELTA_BYTE_ARRAY'],
  },
  gaps: {
    type: 'STRING',
    data: list("(i % 3 ? 'ü' + i : null)"),
    encodings: ['PLAIN', 'DELTA_BYTE_ARRAY'],
  },
  int: {
    type: 'INT32',
    data: list('(i * 7919 ** 2) | 0'),
    encodings: ['PLAIN', 'DELTA_BINARY_PACKED', 'BYTE_STREAM_SPLIT'],
  },
  long: {
    type: 'INT64',
    data: list('BigInt(i) * 7919n ** 4n - 2n ** 61n'),
    encodings: ['PLAIN', 'DELTA_BINARY_PACKED', 'RLE_DICTIONARY'],
  },
  float: { type: 'FLOAT', data: list('i / 4'), encodings: ['PLAIN', 'BYTE_STREAM_SPLIT'] },
  double: { type: 'DOUBLE', data: list('i / 3'), encodings: ['PLAIN', 'RLE_DICTIONARY'] },
  flag: { type: 'BOOLEAN', data: list('i % 5 === 0'), encodings: ['PLAIN', 'RLE'] },
  nested: {
    type: 'JSON',
    data: list("(i % 4 ? { a: [i, { b: 'c' }] } : [])"),
    encodings: ['PLAIN'],
  },
};

/** The values of a column as the writer got them. */
const valuesOf = (data: string): unknown[] => new Function(`return ${data}`)();

const files = Object.entries(COLUMNS).flatMap(([name, { type, data, encodings }]) =>
  encodings.map((encoding) => ({
    name,
    data,
    codec: 'UNCOMPRESSED',
    path: join(folder, `${name}-${encoding}.parquet`),
    columns: `[{ name: 'value', type: '${type}', encoding: '${encoding}', data: ${data} }]`,
  })),
);
const codecs = ['UNCOMPRESSED', 'SNAPPY', 'GZIP', 'BROTLI', 'ZSTD', 'LZ4_RAW', 'LZ4'].map(
  (codec) => ({
    name: codec,
    codec,
    path: join(folder, `${codec}.parquet`),
    data: COLUMNS.gaps?.data as string,
    columns: `[{ name: 'value', type: 'STRING', data: ${COLUMNS.gaps?.data} }]`,
  }),
);
const all = [...files, ...codecs];
beforeAll(() => writeWhole(all));

test.each(all.map((file) => [file.path.slice(folder.length + 1), file] as const))(
  '%s',
  async (_name, { path, data }) => {
    const borders = await readGroupStarts(path);
    expect(borders).toEqual([0, 40, 80, 100]);
    const rows = await readParquetRows(path, 0, ROWS);
    expect(rows).toEqual(valuesOf(data).map((value) => ({ value })));
    expect(await readParquetRows(path, 40, 80)).toEqual(rows.slice(40, 80));
  },
);

/** Frames of zstd 1.5 at several levels, and their text. */
test('Zstandard frames of the reference compressor are read', () => {
  const { text, frames } = JSON.parse(
    readFileSync(join(__dirname, '..', 'golden', 'zstd.json'), 'utf8'),
  ) as { text: { words: string[]; count: number }; frames: Record<string, string> };
  const { words, count } = text;
  const pick = (i: number): string => words[(i * i + (i >> 3)) % words.length] as string;
  const fullBytes = Buffer.from(Array.from({ length: count }, (_, i) => pick(i)).join(' '));
  for (const [level, base64] of Object.entries(frames)) {
    const frame = Buffer.from(base64, 'base64');
    expect([level, Buffer.compare(decodeZstd(frame, fullBytes.length), fullBytes)]).toEqual([
      level,
      0,
    ]);
    for (const size of [fullBytes.length - 1, fullBytes.length + 1]) {
      expect(() => decodeZstd(frame, size)).toThrow(/^zstd: /);
    }
  }
});

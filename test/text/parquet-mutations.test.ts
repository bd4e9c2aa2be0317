// Damaged and hostile Parquet files: each ends with DS_DATA, or with the rows that its footer
// counts, within bounds of time and memory. DS_FUZZ_SECONDS runs the generator longer.
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { brotliCompressSync, gzipSync } from 'node:zlib';

import { DsError } from '../../lib/errors.js';
import { readGroupStarts, readParquetRows } from '../../lib/text/parquet-rows.js';
import { below } from '../support/random.js';
import { refusal } from '../support/refusal.js';
import { emptyFolder, removeFolders } from './folders.js';
import { CODEC, plain, type SmallFile, smallFile, writeWhole } from './parquet-files.js';

const folder = emptyFolder();
afterAll(removeFolders);
const path = join(folder, 'case.parquet');

const [SECONDS, BYTES] = [5, 256 << 20];
const zstdBomb = (blocks: number): Buffer => {
  const block = Buffer.alloc(4);
  block.writeUIntLE(((128 << 10) << 3) | 2, 0, 3);
  const last = Buffer.from(block);
  last[0] = (last[0] as number) | 1;
  const all = Array.from({ length: blocks }, (_, i) => (i < blocks - 1 ? block : last));
  return Buffer.concat([Buffer.from([0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x58]), ...all]);
};
/** Level bytes of a page: one run of `count` values. */
const run = (count: number, value: number): Buffer => {
  const bytes: number[] = [];
  for (let left = count * 2; ; left = Math.floor(left / 128)) {
    bytes.push(left < 128 ? left : (left % 128) | 128);
    if (left < 128) break;
  }
  const length = Buffer.alloc(4);
  length.writeUInt32LE(bytes.length + 1);
  return Buffer.concat([length, Buffer.from([...bytes, value])]);
};
const OPTIONAL = 1;
const INT32 = 1;
const INT64 = 2;
const zeros = Buffer.alloc(6_500_000);

const HOSTILE: Readonly<Record<string, SmallFile>> = {
  'more rows than values': { page: plain('a'), values: 1, rows: 2 ** 31 },
  'values that the page does not hold': { page: plain('a'), values: 2 ** 31 },
  'two thousand million nulls': { page: run(2 ** 31, 0), values: 2 ** 31, repetition: OPTIONAL },
  'ten million nulls': { page: run(1e7, 0), values: 1e7, repetition: OPTIONAL },
  'a run beyond the values': { page: run(9, 0), values: 2, repetition: OPTIONAL },
  'a level above the largest': { page: run(2, 2), values: 2, repetition: OPTIONAL },
  'a string beyond the page': { page: Buffer.from([9, 0, 0, 0, 65]), values: 1 },
  'bytes behind the values': { page: plain('a', 'b'), values: 1 },
  'ten zeros behind the values': { page: Buffer.concat([plain('a'), Buffer.alloc(10)]) },
  'invalid UTF-8': { page: Buffer.from([1, 0, 0, 0, 0xff]), values: 1 },
  'a page that ends behind the file': { page: plain('a'), size: 2 ** 30 },
  'gzip with the wrong size': { page: gzipSync(plain('a')), codec: CODEC.gzip, whole: 6_500_000 },
  'gzip of six million zeros': { page: gzipSync(zeros), codec: CODEC.gzip, whole: 2 ** 31 - 1 },
  'gzip beyond the size': { page: gzipSync(zeros), codec: CODEC.gzip, whole: 5 },
  'brotli beyond the size': { page: brotliCompressSync(zeros), codec: CODEC.brotli, whole: 5 },
  'zstd beyond the size': { page: zstdBomb(2000), codec: CODEC.zstd, whole: 5 },
  'zstd of 250 MiB': { page: zstdBomb(2000), codec: CODEC.zstd, whole: 2000 << 17 },
  'LZ4 beyond the size': {
    page: Buffer.concat([Buffer.from([0x1f, 65, 1, 0]), Buffer.alloc(9000, 255)]),
    codec: CODEC.lz4raw,
    whole: 64,
  },
  'snappy with a negative literal': {
    page: Buffer.from([5, 0xfc, 0xfb, 0xff, 0xff, 0xff, 65, 66, 67, 68, 69]),
    codec: CODEC.snappy,
    whole: 5,
  },
  'differences of no bits': {
    page: Buffer.from([0x80, 1, 4, 0x80, 0x80, 0x80, 0x80, 8, 0, 0, 0, 0, 0, 0]),
    encoding: 5,
    type: INT32,
    values: 2 ** 31,
  },
};

test.each(Object.entries(HOSTILE))('%s is refused', async (_name, options) => {
  writeFileSync(path, smallFile(options));
  const before = process.resourceUsage().maxRSS * 1024;
  const started = process.cpuUsage();
  const error = await refusal(async () =>
    readParquetRows(path, 0, (await readGroupStarts(path)).at(-1) ?? 0),
  );
  expect([error.code, error.op, error.expected]).toEqual(['DS_DATA', path, 'a Parquet file']);
  expectBounded(before, started);
});

function expectBounded(before: number, started: NodeJS.CpuUsage): void {
  const { user } = process.cpuUsage(started);
  expect(process.resourceUsage().maxRSS * 1024 - before).toBeLessThan(BYTES);
  expect(user / 1e6).toBeLessThan(SECONDS);
}

test('eight zeros behind the values, as fastparquet writes them, are padding', async () => {
  writeFileSync(path, smallFile({ page: Buffer.concat([plain('ab'), Buffer.alloc(8)]) }));
  expect(await readParquetRows(path, 0, 1)).toEqual([{ text: 'ab' }]);
});

test('a row group without rows may lack pages', async () => {
  writeFileSync(path, smallFile({ page: Buffer.alloc(0), values: 0, offset: 0 }));
  expect(await readGroupStarts(path)).toEqual([0, 0]);
  expect(await readParquetRows(path, 0, 0)).toEqual([]);
});

test.each([
  ['gzip', CODEC.gzip, gzipSync],
  ['brotli', CODEC.brotli, brotliCompressSync],
])('numbers behind levels in a page of %s', async (_name, codec, compress) => {
  const numbers = BigInt64Array.of(7n, -1n, 2n ** 40n);
  const fullBytes = Buffer.concat([run(3, 1), Buffer.from(numbers.buffer)]);
  const more = { type: INT64, repetition: OPTIONAL, values: 3, whole: fullBytes.length };
  writeFileSync(path, smallFile({ ...more, page: compress(fullBytes), codec }));
  expect(await readParquetRows(path, 0, 3)).toEqual(Array.from(numbers, (text) => ({ text })));
});

test('a small file of one string is read', async () => {
  writeFileSync(path, smallFile({ page: plain('a') }));
  expect(await readParquetRows(path, 0, 1)).toEqual([{ text: 'a' }]);
  const page = gzipSync(plain('ab', 'c'));
  writeFileSync(path, smallFile({ page, values: 2, whole: 11, codec: CODEC.gzip }));
  expect(await readParquetRows(path, 0, 2)).toEqual([{ text: 'ab' }, { text: 'c' }]);
});

/** Whole files that mutations start from. */
function sources(): Buffer[] {
  const list = (body: string): string => `Array.from({ length: 60 }, (_, i) => ${body})`;
  const column = (name: string, type: string, data: string, encoding?: string): string =>
    `{ name: '${name}', type: '${type}', data: ${data}${encoding ? `, encoding: '${encoding}'` : ''} }`;
  const columns = `[${[
    column('plain', 'STRING', list("'row ' + i"), 'PLAIN'),
    column('dictionary', 'STRING', list("i % 4 ? 'row ' + (i % 3) : null")),
    column('delta', 'STRING', list("'row ' + i"), 'DELTA_BYTE_ARRAY'),
    column('number', 'INT64', list('BigInt(i * i)'), 'DELTA_BINARY_PACKED'),
    column('split', 'FLOAT', list('i / 3'), 'BYTE_STREAM_SPLIT'),
    column('flag', 'BOOLEAN', list('i % 2 === 0'), 'RLE'),
    column('json', 'JSON', list('({ a: [i] })')),
  ].join(', ')}]`;
  const codecs = ['UNCOMPRESSED', 'SNAPPY', 'GZIP', 'BROTLI', 'ZSTD', 'LZ4_RAW'];
  const files = codecs.map((codec) => ({ codec, columns, path: join(folder, `${codec}.parquet`) }));
  writeWhole(files);
  return files.map((file) => readFileSync(file.path));
}

const pick = <T>(values: readonly T[]): T => values[below(values.length)] as T;
const SIZES = [0, 1, 2, 7, 100, 2 ** 20, 2 ** 24, 2 ** 31 - 1, 2 ** 31, 2 ** 40, -1];

/** A file that a mutation made. */
function mutate(fullRows: readonly Buffer[]): Buffer {
  const bytes = Buffer.from(pick(fullRows));
  const kind = below(6);
  if (kind === 0) return bytes.subarray(0, below(bytes.length));
  if (kind === 1) return smallFile(randomSmall());
  const footer = bytes.length - 8 - bytes.readUInt32LE(bytes.length - 8);
  const inFooter = kind === 2;
  for (let i = 0; i <= below(kind === 3 ? 30 : 3); ++i) {
    const at = inFooter ? footer + below(bytes.length - footer) : below(bytes.length);
    bytes[at] = pick([below(256), (bytes[at] as number) ^ (1 << below(8)), 0xff, 0x80, 0]);
  }
  if (kind === 4) {
    const [from, to] = [below(footer), below(footer)];
    bytes.copyWithin(to, from, from + below(60));
  }
  return bytes;
}

function randomSmall(): SmallFile {
  const packed = Buffer.from(Array.from({ length: below(40) }, () => below(256)));
  const texts = plain(...Array.from({ length: below(5) }, (_, i) => 'x'.repeat(i)));
  const values = pick(SIZES);
  const page = pick([
    packed,
    texts,
    run(Math.abs(values), below(3)),
    gzipSync(texts),
    zstdBomb(1 + below(200)),
    Buffer.concat([run(Math.abs(values), 1), packed]),
    brotliCompressSync(texts),
  ]);
  return {
    page,
    values,
    rows: pick([values, pick(SIZES)]),
    codec: below(9),
    encoding: below(10),
    type: below(8),
    repetition: below(3),
    groups: 1 + below(3),
    whole: pick([page.length, texts.length, pick(SIZES)]),
    size: pick([page.length, page.length, pick(SIZES)]),
  };
}

/** How a file ended: refused, or read. */
async function outcome(bytes: Buffer): Promise<'refused' | 'read'> {
  writeFileSync(path, bytes);
  try {
    const borders = await readGroupStarts(path);
    const count = borders.at(-1) as number;
    for (let i = 1; i < borders.length; ++i) {
      const [start, end] = [borders[i - 1] as number, borders[i] as number];
      const rows = await readParquetRows(path, start, end);
      if (rows.length !== end - start) throw new Error(`${rows.length} rows of ${count}`);
    }
    return 'read';
  } catch (error) {
    if (error instanceof DsError && error.code === 'DS_DATA') return 'refused';
    throw error;
  }
}

test('random mutations', async () => {
  const fullRows = sources();
  for (const bytes of fullRows) expect(await outcome(bytes)).toBe('read');
  const counts = { read: 0, refused: 0 };
  const until = Date.now() + 1000 * Number(process.env.DS_FUZZ_SECONDS ?? 0);
  for (let i = 0; i < 300 || Date.now() < until; ++i) {
    const bytes = mutate(fullRows);
    const before = process.resourceUsage().maxRSS * 1024;
    const started = process.cpuUsage();
    try {
      counts[await outcome(bytes)]++;
      expectBounded(before, started);
    } catch (error) {
      throw new Error(`${bytes.toString('base64')}: ${(error as Error).stack}`);
    }
  }
  if (process.env.DS_FUZZ_SECONDS) process.stdout.write(`${JSON.stringify(counts)}\n`);
  expect(counts.refused).toBeGreaterThan(100);
});

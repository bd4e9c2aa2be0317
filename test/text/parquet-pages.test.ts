// Parquet files with a damaged page: an error, and no reader that never ends.
import { execFileSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { text } from '../../lib/index.js';
import { packageRoot } from '../../lib/runtime/package-root.js';
import { refusal } from '../support/refusal.js';

const folder = mkdtempSync(join(tmpdir(), 'ds-pages-'));
const fullText = join(folder, 'whole.parquet');
const tokenizer = text.Tokenizer.fromPretrained(join(packageRoot(), 'examples', 'tokenizer'));
/** A column of many small pages. */
const many = join(folder, 'many.parquet');
afterAll(() => rmSync(folder, { recursive: true }));

/** Where the header of the first page of data begins: a dictionary lies before it. */
let first = 0;

/** Writer and reader are ES modules: another process runs them. */
beforeAll(() => {
  const options = JSON.stringify({ filename: fullText, codec: 'UNCOMPRESSED' });
  const script = `(async () => {
    const { parquetWriteFile } = await import('hyparquet-writer');
    const data = Array.from({ length: 200 }, (_, i) => 'row ' + (i % 7));
    parquetWriteFile({ ...${options}, columnData: [{ name: 'text', type: 'STRING', data }] });
    const { asyncBufferFromFile, parquetMetadataAsync } = await import('hyparquet');
    const { row_groups } = await parquetMetadataAsync(await asyncBufferFromFile('${fullText}'));
    console.log(Number(row_groups[0].columns[0].meta_data.data_page_offset));
    const long = Array.from({ length: 20000 }, (_, i) => 'row ' + i);
    const columnData = [{ name: 'text', type: 'STRING', data: long, encoding: 'PLAIN' }];
    parquetWriteFile({ filename: '${many}', codec: 'UNCOMPRESSED', pageSize: 256, columnData });
  })()`;
  first = Number(execFileSync(process.execPath, ['-e', script], { cwd: packageRoot() }));
});

/** A field of type i32 behind the field before it. */
const NEXT = 0x15;

/** Where the numbers of that header begin: its type, whole size, size, and values. */
function placesIn(bytes: Uint8Array): number[] {
  const places: number[] = [];
  let at = first;
  while (places.length < 4) {
    if (bytes[at++] !== NEXT) continue; // The header of the values lies in a struct of its own.
    places.push(at);
    while ((bytes[at++] as number) >= 0x80);
  }
  return places;
}

const open = (path: string, threads: number) =>
  text.TextDataset.open({ files: path, tokenizer, length: 64, threads, timeoutMs: 60_000 });

test('an undamaged file is read', async () => {
  const { report } = await open(fullText, 0);
  expect(report?.rows).toBe(200);
});

test('a column of many small pages is read', async () => {
  const { report } = await open(many, 0);
  expect(report?.rows).toBe(20_000);
});

/** Odd numbers stand for negative ones. */
const negateByte = (bytes: Uint8Array, which: number): void => {
  const place = placesIn(bytes)[which] as number;
  bytes[place] = (bytes[place] as number) | 1;
};

/** Where a number of two bytes ends. */
const last = (bytes: Uint8Array, which: number): number => (placesIn(bytes)[which] as number) + 1;

/** A field of the type 0 is the end of a header. */
const endEarly = (bytes: Uint8Array, before: number): void => {
  bytes[(placesIn(bytes)[before] as number) - 1] = 0;
};

test.each<[string, (bytes: Uint8Array) => void]>([
  ['ends before its whole size', (bytes) => endEarly(bytes, 1)],
  ['ends before its size', (bytes) => endEarly(bytes, 2)],
  ['ends before its number of values', (bytes) => endEarly(bytes, 3)],
  [
    'has too large a number of values',
    (bytes) => bytes.fill(0xff, last(bytes, 3), last(bytes, 3) + 1),
  ],
  ['has a negative whole size', (bytes) => negateByte(bytes, 1)],
  ['has a negative size', (bytes) => negateByte(bytes, 2)],
  ['has a negative number of values', (bytes) => negateByte(bytes, 3)],
])('a page whose header %s', async (name, damage) => {
  const bytes = readFileSync(fullText);
  damage(bytes);
  const path = join(folder, `${name}.parquet`);
  writeFileSync(path, bytes);
  // A thread can be ended where this one would read on.
  for (const threads of [1, 0]) {
    expect(await refusal(() => open(path, threads))).toMatchObject({
      code: 'DS_DATA',
      op: path,
      expected: 'a Parquet file',
      got: expect.stringMatching(`^column text, byte ${first}: `),
    });
  }
});

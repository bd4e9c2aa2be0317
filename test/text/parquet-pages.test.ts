// Parquet files with a damaged page: an error, and no reader that never ends.
import { execFileSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { text } from '../../lib/index.js';
import { packageRoot } from '../../lib/runtime/package-root.js';
import { refusal } from '../support/refusal.js';

const folder = mkdtempSync(join(tmpdir(), 'ds-pages-'));
const whole = join(folder, 'whole.parquet');
const tokenizer = text.Tokenizer.fromPretrained(join(packageRoot(), 'examples', 'tokenizer'));
afterAll(() => rmSync(folder, { recursive: true }));

/** The writer is an ES module: another process runs it. Its first page begins behind "PAR1". */
beforeAll(() => {
  const options = JSON.stringify({ filename: whole, codec: 'UNCOMPRESSED' });
  const script = `import('hyparquet-writer').then(({ parquetWriteFile }) =>
    parquetWriteFile({ ...${options}, columnData: [{ name: 'text', type: 'STRING', encoding: 'PLAIN',
      data: Array.from({ length: 200 }, (_, i) => 'row ' + i) }] }))`;
  execFileSync(process.execPath, ['-e', script], { cwd: packageRoot() });
});

const FIRST = 4;
/** A field of type i32 behind the field before it. */
const NEXT = 0x15;

/** Where the numbers of the first page's header begin: its type, whole size, size, and values. */
function placesIn(bytes: Uint8Array): number[] {
  const places: number[] = [];
  let at = FIRST;
  while (places.length < 4) {
    if (bytes[at++] !== NEXT) continue; // The header of the values lies in a struct of its own.
    places.push(at);
    while ((bytes[at++] as number) >= 0x80);
  }
  return places;
}

const open = (path: string, threads: number) =>
  text.TextDataset.open({ files: path, tokenizer, length: 64, threads, timeoutMs: 5000 });

test('a whole file is read', async () => {
  const { report } = await open(whole, 0);
  expect(report?.rows).toBe(200);
});

test.each([
  [1, 'whole size'],
  [2, 'size'],
  [3, 'number of values'],
])('a page whose header has a negative number %i, its %s', async (which) => {
  const bytes = readFileSync(whole);
  const place = placesIn(bytes)[which] as number;
  bytes[place] = (bytes[place] as number) | 1; // Odd numbers stand for negative ones.
  const path = join(folder, `damaged-${which}.parquet`);
  writeFileSync(path, bytes);
  // A thread can be ended where this one would read on.
  for (const threads of [1, 0]) {
    expect(await refusal(() => open(path, threads))).toMatchObject({
      code: 'DS_DATA',
      op: path,
      expected: 'a Parquet file',
      got: expect.stringMatching(/^column text, byte 4: a page of /),
    });
  }
});

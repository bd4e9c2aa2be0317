// Tests the table of `ds models`, and the line of a removal.
import { mkdirSync, mkdtempSync, rmSync, utimesSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';

import { modelsCommand, removeCommand } from '../../lib/launch/models.js';

const [OLD, NEW] = ['ab'.repeat(20), 'cd'.repeat(20)];

let cache: string;
const inherited = process.env.HF_HUB_CACHE;
beforeEach(() => {
  cache = mkdtempSync(join(tmpdir(), 'ds-models-'));
  process.env.HF_HUB_CACHE = cache;
});
afterEach(() => {
  rmSync(cache, { recursive: true });
  if (inherited === undefined) delete process.env.HF_HUB_CACHE;
  else process.env.HF_HUB_CACHE = inherited;
});

function write(path: string, text: string): void {
  const file = join(cache, path);
  mkdirSync(dirname(file), { recursive: true });
  writeFileSync(file, text);
  utimesSync(file, new Date(0), Date.UTC(2026, 2, 4, 23, 59) / 1000);
}

test('an empty cache prints one line', async () => {
  expect(await modelsCommand({})).toBe(`no models in ${cache}`);
});

test('each model has its size, date and revisions', async () => {
  write(`models--org--tiny/snapshots/${OLD}/config.json`, 'x'.repeat(1500));
  write(`models--org--tiny/snapshots/${NEW}/config.json`, 'x'.repeat(400));
  write(`models--org--tiny/snapshots/${NEW}/tokenizer.json`, 'x'.repeat(100));
  write('models--org--tiny/refs/main', NEW);
  write(`models--org--tiny/blobs/${'0'.repeat(64)}.incomplete`, 'x'.repeat(3000));
  const lines = (await modelsCommand({})).split('\n');
  const [row = '', second = '', ...rest] = lines;
  expect(row).toMatch(
    /^org\/tiny {2}2\.00 kB {2}\d{4}-\d{2}-\d{2} {2}\w{8}.*, 3\.00 kB unfinished$/,
  );
  const revisions = [row, second].map((line) => /(\w{8})( \(main\))?, (\d files?)/.exec(line));
  expect(revisions.map((found) => found?.slice(1)).sort()).toEqual([
    ['abababab', undefined, '1 file'],
    ['cdcdcdcd', ' (main)', '2 files'],
  ]);
  expect(second).toMatch(/^ {20,}\w{8}/);
  expect(rest).toEqual(['', expect.stringMatching(/^one model, 5\.00 kB, in /)]);
  expect(lines.at(-1)).toContain(cache);
});

test('columns are aligned, and models are counted', async () => {
  write(`models--a--b/snapshots/${OLD}/config.json`, 'x');
  write(`models--long-owner--name/snapshots/${NEW}/config.json`, 'x');
  const [first = '', second = '', , total] = (await modelsCommand({})).split('\n');
  expect(first.indexOf(OLD.slice(0, 8))).toBe(second.indexOf(NEW.slice(0, 8)));
  expect(total).toMatch(/^2 models, /);
  const found = JSON.parse(await modelsCommand({ json: true }));
  expect(found.map(({ name }: { name: string }) => name)).toEqual(['a/b', 'long-owner/name']);
});

test('a removal lists the removed files', async () => {
  write(`models--a--b/snapshots/${OLD}/config.json`, 'x'.repeat(2000));
  write(`models--a--b/snapshots/${NEW}/config.json`, 'x'.repeat(1000));
  expect(await removeCommand('a/b', { revision: OLD })).toMatch(
    new RegExp(`^removed revision ${OLD} of a/b: 2\\.00 kB freed$`),
  );
  expect(await removeCommand('a/b', {})).toMatch(/^removed a\/b: 1\.00 kB freed$/);
  expect(await modelsCommand({})).toBe(`no models in ${cache}`);
});

// Tests the measurements, output and cleanup of `ds io`.
import { mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { findFastest, ioCommand } from '../../lib/launch/io.js';
import { type MeasuredSetting, toBytesPerSecond } from '../../lib/launch/measure-disk.js';
import type { IoFlags } from '../../lib/launch/tool-options.js';

let folder: string;
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'ds-io-'));
});
afterAll(() => rmSync(folder, { recursive: true, force: true }));

const flags: IoFlags = {
  size: 2 ** 20,
  block_size: [5000, 2 ** 14],
  queue_depth: [1, 4],
  threads: [1, 2],
};

test('measures each size of requests with each depth, then threads, and prints the section', () => {
  const lines: string[] = [];
  const disk = join(folder, 'disk');
  const section = ioCommand(disk, { ...flags, parameters: 1_000_000 }, (line) => lines.push(line));
  const { aio } = JSON.parse(section);
  const [place = '', , ...rows] = lines;
  expect(place).toContain(`${disk}: `);
  const measured = rows.slice(0, 5).map((row) => row.trim().split(/ +/).map(Number));
  expect(measured.slice(0, 4).map((row) => row.slice(0, 3))).toEqual([
    ...[1, 4].map((depth) => [8192, depth, 1]),
    ...[1, 4].map((depth) => [2 ** 14, depth, 1]),
  ]);
  for (const [, , , ...rates] of measured) {
    expect(rates).toHaveLength(3);
    // GB/s: no disk or memory comes near a million.
    for (const rate of rates) expect(rate >= 0 && rate < 1e6).toBe(true);
  }
  const best = Math.max(...measured.map((row) => row[5] as number));
  const chosen = [aio.block_size, aio.queue_depth, aio.intra_op_parallelism].join();
  const winners = measured.filter((row) => row[5] === best).map((row) => row.slice(0, 3).join());
  expect(winners).toContain(chosen);
  expect(rows[5]).toMatch(/^1,000,000 parameters with Adam: 12\.0 MB of state, .* in \d+\.\d\d s$/);
  expect(rows[6]).toMatch(/writes .*B a day/);
  expect(readdirSync(disk)).toEqual([]);
});

test('a mixed pass reads and writes half of the bytes each', () => {
  const rates = toBytesPerSecond(1000, { read: 2, write: 4, mixed: 5 });
  expect(rates).toEqual({ read: 500, write: 250, mixed: 100 });
});

test('keeps the setting with the fastest mixed transfers, in any order', () => {
  const measured = [5, 9, 7].map((mixed) => ({ rates: { read: 1, write: 1, mixed } }));
  expect(findFastest(measured as MeasuredSetting[]).rates.mixed).toBe(9);
});

test('a path that is a file is an error', () => {
  const path = join(folder, 'file');
  writeFileSync(path, '');
  const call = () => ioCommand(path, flags, () => {});
  expect(call).toThrow(expect.objectContaining({ code: 'DS_IO', op: `ds io ${path}` }));
});

test.each([
  [2 ** 24, [2 ** 20]],
  [2 ** 20, [2 ** 17]],
])('a file of %i bytes is measured in blocks of which it has enough', (size, blocks) => {
  const lines: string[] = [];
  const one = { size, queue_depth: [4], threads: [1] };
  ioCommand(join(folder, 'small'), one, (line) => lines.push(line));
  const sizes = lines.slice(2).map((row) => Number(row.trim().split(/ +/)[0]));
  expect(sizes).toEqual(blocks);
});

test('a block size with too few blocks is refused before a file is created', () => {
  const path = join(folder, 'unmade');
  const call = () => ioCommand(path, { ...flags, block_size: [5000, 5e9] }, () => {});
  expect(call).toThrow(
    expect.objectContaining({
      code: 'DS_ARGUMENT',
      message: expect.stringMatching(/at most 131072/),
    }),
  );
  expect(readdirSync(folder)).not.toContain('unmade');
  const few = { size: 4, queue_depth: [1], threads: [1] };
  expect(() => ioCommand(path, few, () => {})).toThrow(/the file has 4 and 8 blocks/);
});

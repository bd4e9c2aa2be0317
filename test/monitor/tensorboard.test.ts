// Tests TensorBoard event files with an independent reader, also after a crash.
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { TensorBoardMonitor } from '../../lib/monitor/index.js';
import { crc32c } from '../../lib/monitor/tensorboard.js';
import { readEvents } from './event-reader.js';

let outputPath: string;
beforeEach(() => {
  outputPath = mkdtempSync(join(tmpdir(), 'ds-tensorboard-'));
});
afterEach(() => rmSync(outputPath, { recursive: true }));

const LOSS = 'Train/Samples/train_loss';

test.each([
  ['', 0],
  ['123456789', 0xe3069283],
  ['\0'.repeat(32), 0x8a9136aa],
  [Uint8Array.from({ length: 32 }, (_, i) => i), 0x46dd794e],
])('CRC-32C of the vectors of RFC 3720: %#', (data, expected) => {
  expect(crc32c(Buffer.from(data))).toBe(expected);
});

test('one file per run, named as TensorBoard expects, with a version first', async () => {
  const monitors = [0, 1].map(() => new TensorBoardMonitor({ outputPath, jobName: 'job' }));
  const names = readdirSync(join(outputPath, 'job'));
  expect(names).toHaveLength(2);
  for (const name of names) expect(name).toMatch(/^events\.out\.tfevents\.\d{10}\.[^/]+$/);
  for (const monitor of monitors) {
    await monitor.flush();
    monitor.close();
    expect(readEvents(readFileSync(monitor.path))).toMatchObject([
      { version: 'brain.Event:2', step: 0, values: [] },
    ]);
  }
});

test('reads back names, steps and values, rounded to f32', () => {
  const events = [
    { name: LOSS, value: 5.3214, step: 1 },
    { name: 'Train/Samples/lr', value: 1e-5, step: 127 },
    { name: 'Ünïcode ✓', value: -0, step: 128 },
    { name: LOSS, value: Number.NaN, step: 2 ** 31 },
    { name: LOSS, value: Number.POSITIVE_INFINITY, step: 2 ** 45 + 3 },
    { name: 'x'.repeat(300), value: 65536, step: Number.MAX_SAFE_INTEGER },
  ];
  const before = Date.now() / 1000;
  const monitor = new TensorBoardMonitor({ outputPath, jobName: 'job' });
  monitor.write(events.slice(0, 2));
  monitor.write([]);
  monitor.write(events.slice(2));
  monitor.close();
  const [, ...read] = readEvents(readFileSync(monitor.path));
  expect(read.map(({ step, values }) => ({ step, values }))).toEqual(
    events.map(({ name, value, step }) => ({
      step,
      values: [{ tag: name, value: Math.fround(value) }],
    })),
  );
  for (const { wallTime } of read) {
    expect(wallTime).toBeGreaterThanOrEqual(before);
    expect(wallTime).toBeLessThanOrEqual(Date.now() / 1000);
  }
});

test('a file truncated in its last record is readable up to this record', () => {
  const monitor = new TensorBoardMonitor({ outputPath, jobName: 'job' });
  monitor.write([{ name: LOSS, value: 3, step: 8 }]);
  const kept = readFileSync(monitor.path);
  monitor.write([{ name: LOSS, value: 2, step: 16 }]);
  monitor.close();
  const fullBytes = readFileSync(monitor.path);
  expect(readEvents(fullBytes).map(({ step }) => step)).toEqual([0, 8, 16]);
  for (let length = kept.length; length < fullBytes.length; ++length) {
    expect(readEvents(fullBytes.subarray(0, length)).map(({ step }) => step)).toEqual([0, 8]);
  }
});

test('events are in the file before flush() or close()', () => {
  const monitor = new TensorBoardMonitor({ outputPath, jobName: 'job' });
  monitor.write([{ name: LOSS, value: 3, step: 8 }]);
  expect(readEvents(readFileSync(monitor.path))).toHaveLength(2);
  monitor.close();
});

test('the error of a folder that cannot be created names it', () => {
  writeFileSync(join(outputPath, 'job'), '');
  expect(() => new TensorBoardMonitor({ outputPath, jobName: 'job' })).toThrow(
    expect.objectContaining({ code: 'DS_IO', op: join(outputPath, 'job') }),
  );
});

test.each([Number.NaN, -1, 1.5, Number.POSITIVE_INFINITY])('a step %d is refused', (step) => {
  const monitor = new TensorBoardMonitor({ outputPath, jobName: 'job' });
  const write = () => monitor.write([{ name: LOSS, value: 1, step }]);
  expect(write).toThrow(expect.objectContaining({ code: 'DS_ARGUMENT' }));
  monitor.close();
});

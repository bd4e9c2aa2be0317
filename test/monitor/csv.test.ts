// CSV files in DeepSpeed's layout.
import {
  appendFileSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { CsvMonitor } from '../../lib/monitor/index.js';

let outputPath: string;
beforeEach(() => {
  outputPath = mkdtempSync(join(tmpdir(), 'ds-csv-'));
});
afterEach(() => rmSync(outputPath, { recursive: true }));

const read = (file: string) => readFileSync(join(outputPath, 'job', file), 'utf8');

test('a file per metric, with a header and a row per event', async () => {
  const monitor = new CsvMonitor({ outputPath, jobName: 'job' });
  monitor.write([
    { name: 'Train/Samples/lr', value: 1e-7, step: 16 },
    { name: 'my metric', value: 3, step: 16 },
  ]);
  monitor.write([{ name: 'Train/Samples/lr', value: 0.25, step: 32 }]);
  await monitor.flush();
  monitor.close();
  expect(readdirSync(join(outputPath, 'job')).sort()).toEqual([
    'Train_Samples_lr.csv',
    'my_metric.csv',
  ]);
  expect(read('Train_Samples_lr.csv')).toBe('step,lr\r\n16,1e-7\r\n32,0.25\r\n');
  expect(read('my_metric.csv')).toBe('step,my metric\r\n16,3\r\n');
});

test.each([
  [null, /CsvMonitor.write: expected a list of \{ name, value, step \}, got null/],
  [[null], /CsvMonitor.write event 0: expected .* a string and two numbers, got null/],
  [
    [
      { name: 'a', value: 1, step: 2 },
      { name: 'b', step: 2 },
    ],
    /event 1: .*, got an object \{ name, step \}/,
  ],
])('a value that is no list of events is refused: %j', (events, message) => {
  const monitor = new CsvMonitor({ outputPath, jobName: 'job' });
  expect(() => monitor.write(events as never)).toThrow(message);
  monitor.close();
});

test('the working directory may change before the first event', () => {
  const working = process.cwd();
  try {
    process.chdir(outputPath);
    const monitor = new CsvMonitor({ outputPath: '.', jobName: 'job' });
    process.chdir(working);
    monitor.write([{ name: 'Train/Samples/lr', value: 1, step: 1 }]);
    monitor.close();
  } finally {
    process.chdir(working);
  }
  expect(read('Train_Samples_lr.csv')).toBe('step,lr\r\n1,1\r\n');
});

test('values that are not finite are written as Python reads them', () => {
  const monitor = new CsvMonitor({ outputPath, jobName: 'job' });
  const values = [Number.NaN, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY];
  monitor.write(values.map((value, step) => ({ name: 'a,"b"', value, step })));
  monitor.close();
  expect(read('a,"b".csv')).toBe('step,"a,""b"""\r\n0,nan\r\n1,inf\r\n2,-inf\r\n');
});

test('a second run of the job appends without a second header', () => {
  for (const step of [1, 2]) {
    const monitor = new CsvMonitor({ outputPath, jobName: 'job' });
    monitor.write([{ name: 'x', value: step / 2, step }]);
    monitor.close();
  }
  expect(read('x.csv')).toBe('step,x\r\n1,0.5\r\n2,1\r\n');
});

test('a row that was cut off does not run into the first row of the next run', () => {
  const write = (step: number): void => {
    const monitor = new CsvMonitor({ outputPath, jobName: 'job' });
    monitor.write([{ name: 'x', value: step / 2, step }]);
    monitor.close();
  };
  write(1);
  appendFileSync(join(outputPath, 'job', 'x.csv'), '2,0.');
  write(2);
  write(3);
  expect(read('x.csv')).toBe('step,x\r\n1,0.5\r\n2,0.\r\n2,1\r\n3,1.5\r\n');
});

test('the error of a folder that cannot be created names it', () => {
  writeFileSync(join(outputPath, 'job'), '');
  expect(() => new CsvMonitor({ outputPath, jobName: 'job' })).toThrow(
    expect.objectContaining({ code: 'DS_IO', op: join(outputPath, 'job') }),
  );
});

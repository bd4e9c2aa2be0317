// Tests the files of a dataset analysis: this library's, and DeepSpeed's. The test builds the
// latter byte by byte in the layout of MMapIndexedDataset; Python wrote no file.
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { readIndexedLists, writeIndexedLists } from '../../lib/data/indexed-lists.js';
import { data } from '../../lib/index.js';
import { refusal } from '../support/refusal.js';

let dir: string;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'ds-metric-'));
});
afterEach(() => rmSync(dir, { recursive: true }));
const at = (name: string): string => join(dir, name);

type Width = readonly [code: number, bytes: number];
const [U8, I32, I64, U16, U32, U64] = [
  [1, 1],
  [4, 4],
  [5, 8],
  [6, 2],
  [7, 4],
  [8, 8],
] as Width[];

/**
 * The file of MMapIndexedDatasetBuilder: magic, version, dtype, counts, sizes, pointers, documents.
 */
function writeLists(name: string, lists: readonly number[][], [code, bytes]: Width): string {
  const bin = Buffer.alloc(bytes * lists.flat().length);
  for (const [i, number] of lists.flat().entries()) {
    if (bytes === 8) bin.writeBigInt64LE(BigInt(number), 8 * i);
    else bin.writeUIntLE(number, bytes * i, bytes);
  }
  const head = Buffer.alloc(34);
  head.write('MMIDIDX\0\0', 'latin1');
  head.writeBigUInt64LE(1n, 9);
  head.writeUInt8(code, 17);
  head.writeBigUInt64LE(BigInt(lists.length), 18);
  head.writeBigUInt64LE(2n, 26);
  const ends = lists.map((_, i) => lists.slice(0, i).flat().length * bytes);
  const sizes = Int32Array.from(lists, ({ length }) => length);
  const pointers = BigInt64Array.from(ends, BigInt);
  const documents = BigInt64Array.of(0n, BigInt(lists.length));
  const rest = [sizes, pointers, documents].map(({ buffer }) => Buffer.from(buffer));
  writeFileSync(at(`${name}.bin`), bin);
  writeFileSync(at(`${name}.idx`), Buffer.concat([head, ...rest]));
  return at(name);
}

const sort = (list: Iterable<number>): number[] => [...new Set(list)].sort((a, b) => a - b);

/** The pool of one step of difficulty `difficulty`. */
function pool(metric: Partial<data.CurriculumMetric>, difficulty: number, samples = 7): number[] {
  const schedule = () => difficulty;
  const metrics = { m: { maxDifficulty: 100, schedule, ...metric } };
  return sort(new data.CurriculumSampler(samples, { metrics, batchSize: samples }));
}

/** Samples by value: 5 has 6 and 0, 17 has 3, 300 has 1, 2, 4 and 5. */
const SAMPLES = [[6, 0], [3], [1, 2, 4, 5]];
const METRICS = [[5], [17], [300]];

test.each([
  ['u8', U8, I64],
  ['u16', U16, U16],
  ['u32', U32, I32],
  ['u64', U64, U64],
] as const)('an index of %s is read as DeepSpeed reads it', (_, samples, metrics) => {
  const indexToSamplePath = writeLists('m_index_to_sample', SAMPLES, samples as Width);
  const indexToMetricPath = writeLists('m_index_to_metric', METRICS, metrics as Width);
  const files = { indexToSamplePath, indexToMetricPath };
  expect(pool(files, 4.5 + 0.5)).toEqual([0, 6]);
  expect(pool(files, 16)).toEqual([0, 6]);
  expect(pool(files, 17)).toEqual([0, 3, 6]);
  expect(pool(files, 100)).toEqual([0, 3, 6]);
  const open = { ...files, maxDifficulty: 300 };
  expect(pool(open, 300)).toEqual([0, 1, 2, 3, 4, 5, 6]);
  const named = { ...open, indexToSamplePath: `${indexToSamplePath}.idx` };
  expect(pool(named, 299)).toEqual([0, 3, 6]);
});

test('percentiles read one file, also one merged by DeepSpeed', () => {
  const merged = writeLists(
    'm_index_to_sample_percentile_merged',
    [
      [6, 0, 3],
      [1, 2, 4, 5],
    ],
    U8 as Width,
  );
  const metric = {
    indexToSamplePath: merged,
    difficultyType: 'percentile',
    maxDifficulty: 3,
  } as const;
  // 7 samples of 3 percentiles: 2, 4, and all.
  expect(pool(metric, 1)).toEqual([0, 6]);
  expect(pool(metric, 2)).toEqual([0, 1, 3, 6]);
  expect(pool(metric, 3)).toEqual([0, 1, 2, 3, 4, 5, 6]);
});

test('written lists are read back, with 32-bit and 64-bit numbers', async () => {
  for (const wide of [7, 2 ** 40]) {
    const lists = { lengths: Int32Array.of(2, 0, 1), numbers: Float64Array.of(3, 0, wide) };
    await writeIndexedLists(at('lists'), lists);
    expect(readIndexedLists(at('lists'))).toEqual(lists);
    expect(readFileSync(at('lists.bin'))).toHaveLength(wide === 7 ? 12 : 24);
  }
  const ours = readFileSync(at('lists.idx'));
  writeLists('lists', [[3, 0], [], [2 ** 40]], I64 as Width);
  expect(readFileSync(at('lists.idx'))).toEqual(ours);
});

describe('an index is refused', () => {
  const files = (samples: number[][], metrics = METRICS) => ({
    indexToSamplePath: writeLists('s', samples, I32 as Width),
    indexToMetricPath: writeLists('v', metrics, I64 as Width),
  });

  test.each<[string, number[][], number[][], RegExp]>([
    [
      'of another dataset',
      [[0, 1], [2], [3]],
      METRICS,
      /s\.bin: expected an index of the 7 samples of the dataset, got 4\. Run data\.analyze\(\) on this dataset/,
    ],
    [
      'with a sample twice',
      [[6, 0], [6], [1, 2, 4, 5]],
      METRICS,
      /s\.bin, entry 2: expected each sample once, got 6 again/,
    ],
    [
      'with a sample that there is not',
      [[6, 0], [7], [1, 2, 4, 5]],
      METRICS,
      /entry 2: expected a sample index in \[0, 7\), got 7/,
    ],
    [
      'with fewer values than lists',
      SAMPLES,
      [[5], [17]],
      /v\.idx: expected 3 values, one for each list of .*s, got 2\. Set difficulty_type to "percentile"/,
    ],
    [
      'with values that are lists',
      SAMPLES,
      [[5], [17, 18], [300]],
      /v\.idx, list 1: expected one number, got 2\. Pass an index_to_metric/,
    ],
  ])('%s', async (_, samples, metrics, message) => {
    const options = files(samples, metrics);
    const error = await refusal(() => pool(options, 5));
    expect(error.code).toBe('DS_DATA');
    expect(error.message).toMatch(message);
  });

  test('if it is missing, truncated, or has too large numbers', async () => {
    const options = files(SAMPLES);
    const missing = { ...options, indexToMetricPath: at('none') };
    expect((await refusal(() => pool(missing, 5))).message).toMatch(/none\.bin.*ENOENT/);
    writeFileSync(at('v.bin'), Buffer.alloc(17));
    expect((await refusal(() => pool(options, 5))).message).toMatch(/24 \(i64\) bytes, got 17/);
    const wide = Buffer.alloc(24);
    wide.writeBigInt64LE(2n ** 60n, 8);
    writeFileSync(at('v.bin'), wide);
    expect((await refusal(() => pool(options, 5))).message).toMatch(/v\.bin, number 1: .* 53 bits/);
  });
});

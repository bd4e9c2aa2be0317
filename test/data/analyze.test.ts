// Tests the difficulty of samples against values computed by hand, and the files of an analysis.
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { readIndexedLists } from '../../lib/data/indexed-lists.js';
import { data } from '../../lib/index.js';
import { refusal } from '../support/refusal.js';

const HOOK = join(__dirname, '..', 'support', 'run-typescript.cjs');

let dir: string;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'ds-analyze-'));
});
afterEach(() => rmSync(dir, { recursive: true }));

/** Of 16 tokens, 8 are 1, 4 are 2, 2 are 3 and 2 are 4: -log p is 1, 2, 3 and 3 log 2. */
const TEXTS = [[1, 1, 2], [3], [4, 3, 4], [1, 1, 1, 1], [2, 2, 2, 1, 1]];
const texts = (make: (ids: Int32Array, i: number) => unknown): data.Dataset<unknown> => ({
  length: TEXTS.length,
  get: (i) => make(Int32Array.from(TEXTS[i] as number[]), i),
});

const listsOf = (path: string): number[][] => {
  const { lengths, numbers } = readIndexedLists(path);
  let end = 0;
  return Array.from(lengths, (length) => {
    end += length;
    return [...numbers.slice(end - length, end)];
  });
};

test.each<[string, (ids: Int32Array, i: number) => unknown]>([
  ['tokens', (ids) => ids],
  ['token windows', (ids) => ({ tokens: ids, targets: ids })],
  ['texts', (ids) => ({ ids, labels: ids })],
  ['plain lists, later', async (ids) => ({ input_ids: [...ids] })],
  [
    'padded rows with a mask',
    (ids) => ({
      input_ids: Int32Array.from([...ids, 9, 9]),
      attention_mask: Int32Array.from([...ids.fill(1), 0, 0]),
    }),
  ],
])('%s have lengths and rarities', async (_, make) => {
  // A custom length of the masked tokens.
  const found = await data.analyze(
    texts((ids, i) => make(ids.slice(), i)),
    {
      metrics: { seqlen: 'seqlen', rarity: 'vocab_rarity', last: (_sample, i) => 7 * (i % 2) },
      folder: join(dir, 'a', 'b'),
    },
  );
  expect(listsOf(found.seqlen.indexToSamplePath)).toEqual([[1], [0, 2], [3], [4]]);
  expect(listsOf(found.seqlen.indexToMetricPath)).toEqual([[1], [3], [4], [5]]);
  // In units of log 2, 0.693: 4, 3, 9, 4, 8, that is 2.77, 2.08, 6.24, 2.77, 5.55.
  expect(listsOf(found.rarity.indexToSamplePath)).toEqual([[0, 1, 3], [4], [2]]);
  expect(listsOf(found.rarity.indexToMetricPath)).toEqual([[2], [5], [6]]);
  expect(listsOf(found.last.indexToMetricPath)).toEqual([[0], [7]]);
  const { percentiles } = found.seqlen;
  expect([0, 20, 39, 40, 60, 80, 99, 100].map((p) => percentiles[p])).toEqual([
    1, 1, 1, 3, 3, 4, 4, 5,
  ]);
  expect(found.rarity.indexToSamplePath).toBe(
    join(dir, 'a', 'b', 'rarity', 'rarity_index_to_sample'),
  );
});

test('a sampler draws by the results of the analysis', async () => {
  const length = 50;
  const dataset = { length, get: (i: number) => new Int32Array(1 + ((i * 7) % 10)) };
  const { seqlen } = await data.analyze(dataset, { metrics: { seqlen: 'seqlen' }, folder: dir });
  const values = Array.from({ length }, (_, i) => 1 + ((i * 7) % 10));
  const schedule = data.fixedRoot({ min: 2, max: 10, totalSteps: 8 });
  const shared = { maxDifficulty: 10, schedule };
  for (const difficultyType of ['value', 'percentile'] as const) {
    const [files, given] = [seqlen, { values }].map((source) => {
      const { percentiles: _, ...rest } = { percentiles: [], ...source };
      const metrics = { m: { ...shared, ...rest, difficultyType } };
      return [...new data.CurriculumSampler(length, { metrics, batchSize: 5, seed: 1 })];
    });
    expect(files).toEqual(given);
  }
});

test('worker threads get the samples', async () => {
  const dataset = data.workerDataset<number>({
    module: join(__dirname, 'worker-datasets.ts'),
    export: 'numbers',
    args: [600],
  });
  const { size } = await data.analyze(dataset, {
    metrics: { size: (sample) => sample % 4 },
    folder: dir,
    numWorkers: 2,
    workerThread: { execArgv: ['-r', HOOK] },
  });
  const lists = listsOf(size.indexToSamplePath);
  expect(lists.map((list) => list.length)).toEqual([150, 150, 150, 150]);
  expect(lists[3]?.slice(0, 3)).toEqual([3, 7, 11]);
});

test.each<[string, object, RegExp]>([
  ['no metrics', { metrics: {} }, /metrics: expected an object with at least one metric, by name/],
  [
    'an unknown metric',
    { metrics: { a: 'length' } },
    /metrics.a: .*"vocab_rarity" or a function .* got "length"/,
  ],
  ['a path for a name', { metrics: { '../a': 'seqlen' } }, /names of letters.* got "..\/a"/],
  ['no folder', { folder: undefined }, /folder: expected a string/],
  ['an unknown option', { metric: 1 }, /"metric"/],
  [
    'a fraction',
    { metrics: { a: () => 0.5 } },
    /metrics.a, sample 0: expected a whole number .* got 0.5. Scale/,
  ],
  ['a negative', { metrics: { a: (_: unknown, i: number) => 1 - i } }, /sample 2: .* got -1/],
  ['a promise', { metrics: { a: async () => 1 } }, /whole number of 0 and more, got .*[Pp]romise/],
])('%s is refused', async (_, more, message) => {
  const options = { metrics: { seqlen: 'seqlen' }, folder: dir, ...more } as never;
  const error = await refusal(() =>
    data.analyze(
      texts((ids) => ids),
      options,
    ),
  );
  expect(error.message).toMatch(message);
});

test('samples without tokens, invalid tokens and invalid folders are refused', async () => {
  const run = (make: (ids: Int32Array) => unknown, folder = dir) =>
    refusal(() => data.analyze(texts(make), { metrics: { seqlen: 'seqlen' }, folder }));
  expect((await run(() => ({ pixels: 1 }))).message).toMatch(
    /sample 0: expected tokens: a typed array, alone or as tokens, ids, input_ids, got an object { pixels }. Give a function/,
  );
  expect((await run(() => [1, -2])).message).toMatch(/sample 0, token 1: expected an integer in/);
  writeFileSync(join(dir, 'file'), '');
  let reads = 0;
  const error = await run((ids) => [++reads, ...ids], join(dir, 'file'));
  expect(reads).toBe(0);
  expect(error.code).toBe('DS_IO');
  expect(existsSync(join(dir, 'seqlen'))).toBe(false);
});

test('existing files of a metric are replaced only on request', async () => {
  const folder = join(dir, 'asked');
  const analyze = (more: object = {}) => {
    let reads = 0;
    const size = () => ++reads;
    const done = data.analyze(
      texts((ids) => ids),
      { metrics: { size }, folder, ...more },
    );
    return done.then(
      () => null,
      (error: Error) => ({ error, reads }),
    );
  };
  expect(await analyze()).toBeNull();
  const file = join(folder, 'size', 'size_index_to_sample.bin');
  writeFileSync(file, 'of somebody else');
  const refused = await analyze();
  expect(refused?.error).toMatchObject({ code: 'DS_IO' });
  expect(refused?.error.message).toMatch(
    /size_index_to_sample.bin: expected no file of this name, got an existing file/,
  );
  expect(refused?.reads).toBe(0);
  expect(readFileSync(file, 'utf8')).toBe('of somebody else');
  expect(await analyze({ overwrite: true })).toBeNull();
  expect(readFileSync(file, 'utf8')).not.toBe('of somebody else');
});

// Worker threads of the DataLoader: the same batches as without, every failure as an error, and no
// thread left behind.
import { spawnSync } from 'node:child_process';
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';

import {
  type Batched,
  DataLoader,
  type DataLoaderOptions,
  type Dataset,
  RepeatingLoader,
  TokenDataset,
  type TokenWindow,
  workerDataset,
} from '../../lib/data/index.js';
import type { Tensor } from '../../lib/tensor/index.js';
import { quiet } from '../support/quiet.js';
import { thrownBy } from '../support/refusal.js';
import { stalledAt } from './stalls.js';

const HOOK = join(__dirname, '..', 'support', 'run-typescript.cjs');
const MODULE = join(__dirname, 'worker-datasets.ts');
const workerThread = { execArgv: ['-r', HOOK] };
const asList = (samples: number[]): number[] => samples;

function dataset<Sample = number>(name: string, ...args: unknown[]): Dataset<Sample> {
  return workerDataset<Sample>({ module: MODULE, export: name, args });
}

function loaderOf<Sample, Batch>(
  data: Dataset<Sample>,
  options: DataLoaderOptions<Sample, Batch>,
): DataLoader<Sample, Batch> {
  return new DataLoader(data, { numWorkers: 3, workerThread, ...options });
}

function threads(): number {
  return readdirSync('/proc/self/task').length;
}

/** The number of threads once it is `count`, or that of now where it does not come to it. */
async function threadsComingTo(count: number): Promise<number> {
  // A thread outlives its join a little.
  for (let i = 0; i < 1000 && threads() !== count; ++i) await pause(10);
  return threads();
}

/** Node keeps some threads of its own once they have been needed. */
async function threadsAfterWarmUp(): Promise<number> {
  const loader = loaderOf<number, Tensor>(dataset('numbers', 4), {});
  for await (const batch of loader) batch.dispose();
  await loader.close();
  await quiet(threads);
  return threads();
}

async function collect<Batch>(loader: AsyncIterable<Batch>): Promise<Batch[]> {
  const batches: Batch[] = [];
  for await (const batch of loader) batches.push(batch);
  return batches;
}

describe('the same batches as without workers', () => {
  test.each([1, 2, 3])('with %d workers, in `for` and in `for await`', async (numWorkers) => {
    const options = { batchSize: 3, seed: 5, collate: asList };
    const expected = [...new DataLoader(dataset('numbers', 22), options)];
    const loader = loaderOf(dataset('numbers', 22), { ...options, numWorkers });
    expect([...loader]).toEqual(expected);
    const second = loaderOf(dataset('numbers', 22), { ...options, numWorkers });
    expect(await collect(second)).toEqual(expected);
    await Promise.all([loader.close(), second.close()]);
  });

  test('at any speed of the samples, and with more workers than batches', async () => {
    const loader = loaderOf(dataset('slow', 20), { batchSize: 2, shuffle: false, collate: asList });
    expect([...loader].flat()).toEqual(Array.from({ length: 20 }, (_, i) => i));
    const few = loaderOf(dataset('slow', 2), { shuffle: false, collate: asList });
    expect(await collect(few)).toEqual([[0], [1]]);
  });

  test('stacked tensors of every dtype', () => {
    type Batch = { x: Tensor; wide: Tensor; ids: Tensor[]; bytes: Tensor; n: Tensor };
    const read = (batch: Batch): unknown => ({
      x: [batch.x.dtype, batch.x.shape, batch.x.toArray()],
      wide: [batch.wide.dtype, batch.wide.toArray()],
      ids: batch.ids.map((t) => [t.dtype, t.shape, t.toArray()]),
      bytes: [batch.bytes.dtype, batch.bytes.toArray()],
      n: [batch.n.dtype, batch.n.shape, batch.n.toArray()],
    });
    const options = { batchSize: 4, seed: 1 };
    const [expected, got] = [0, 2].map((numWorkers) => [
      ...loaderOf(dataset<object>('records', 10), { ...options, numWorkers }),
    ]) as unknown as [Batch[], Batch[]];
    expect(got.map(read)).toEqual(expected.map(read));
    expect(got[0]).toMatchObject({ wide: { dtype: 'f64', shape: [4, 4] }, n: { dtype: 'f32' } });
    for (const { x, wide, ids, bytes, n } of [...expected, ...got]) {
      for (const tensor of [x, wide, ...ids, bytes, n]) tensor.dispose();
    }
  });

  test('of uncollated samples, for a collate function', () => {
    // A Buffer crosses as the Uint8Array that it is.
    const collate = (samples: object[]) =>
      samples.map((x) => ({ ...x, bytes: [...(x as { bytes: Buffer }).bytes] }));
    const plain = [...new DataLoader(dataset<object>('records', 5), { batchSize: 2, collate })];
    const data = dataset<object>('records', 5);
    const got = [...loaderOf(data, { batchSize: 2, numWorkers: 2, collate })];
    expect(JSON.stringify(got, bigintText)).toBe(JSON.stringify(plain, bigintText));
  });

  test('of token datasets, which describe themselves', () => {
    const run = new TokenDataset(
      Int32Array.from({ length: 101 }, (_, i) => i),
      10,
    );
    const [expected, got] = [0, 2].map((numWorkers) => {
      const batches = [
        ...loaderOf<TokenWindow, Batched<TokenWindow>>(run, { batchSize: 4, numWorkers }),
      ];
      return batches.map(({ tokens, targets }) => [tokens.toArray(), targets.toArray()]);
    });
    expect(got).toEqual(expected);
  });

  test('of a dataset that is only built in the workers', async () => {
    const data = workerDataset<number>({ module: MODULE, export: 'later', args: [5], length: 5 });
    const options = { shuffle: false, batchSize: 2, collate: asList };
    expect(await collect(loaderOf(data, options))).toEqual([[0, 1], [2, 3], [4]]);
  });
});

const bigintText = (_: string, x: unknown): unknown => (typeof x === 'bigint' ? `${x}n` : x);

describe('positions', () => {
  test.each([0, 3])('any position resumes there, %d workers', async (numWorkers) => {
    const make = (seed: number) =>
      loaderOf(dataset('numbers', 8), { batchSize: 3, seed, collate: asList, numWorkers });
    const fullLoader = new RepeatingLoader(make(11));
    const all = Array.from({ length: 9 }, () => fullLoader.next().value);
    for (const cut of [1, 2, 3, 4]) {
      const first = make(11);
      const before = new RepeatingLoader(first);
      for (let i = 0; i < cut; ++i) before.next();
      const second = make(99);
      second.loadStateDict(JSON.parse(JSON.stringify(first.stateDict())));
      const rest = new RepeatingLoader(second);
      for (let i = cut; i < 9; ++i) expect(rest.next().value).toEqual(all[i]);
      await Promise.all([first.close(), second.close()]);
    }
    await fullLoader.loader[Symbol.asyncIterator]().return?.(undefined);
  });

  test('a state that is loaded during an iteration is followed by its next batch', () => {
    const loader = loaderOf(dataset('numbers', 9), { batchSize: 2, seed: 3, collate: asList });
    const start = loader.stateDict();
    const seen: number[][] = [];
    for (const batch of loader) {
      seen.push(batch);
      if (seen.length === 3) loader.loadStateDict(start);
    }
    expect(seen.slice(3)).toEqual([
      ...loaderOf(dataset('numbers', 9), { batchSize: 2, seed: 3, collate: asList }),
    ]);
    expect(seen.slice(0, 3)).toEqual(seen.slice(3, 6));
  });

  test('batches prepared for an ended iteration are not served', () => {
    const options = { batchSize: 1, shuffle: false, collate: asList, persistentWorkers: true };
    const loader = loaderOf(dataset('numbers', 30), options);
    for (const [n] of loader) if (n === 4) break;
    expect([...loader][0]).toEqual([5]);
    void loader.close();
  });
});

describe('failures', () => {
  const bad = 13;
  const loadTroubled = (trouble: string, options: DataLoaderOptions<unknown, unknown> = {}) =>
    loaderOf<unknown, unknown>(dataset('troubledDataset', 20, bad, trouble), {
      batchSize: 2,
      shuffle: false,
      ...options,
    });

  test.each(['throw', 'reject'])('a worker that fails by %s gives its error', async (trouble) => {
    const loader = loadTroubled(trouble, { collate: (samples) => samples });
    const seen: unknown[] = [];
    const error = thrownBy(() => {
      for (const batch of loader) seen.push(batch);
    });
    expect(seen.flat()).toEqual([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
    expect(error).toMatchObject({
      code: 'DS_DATA',
      message: expect.stringMatching(
        /^DataLoader worker 0, in sample 13: .*SampleError: no such picture/,
      ),
      cause: {
        name: 'SampleError',
        message: 'no such picture',
        stack: expect.stringContaining('worker-datasets.ts'),
      },
    });
    await expect(collect(loadTroubled(trouble))).rejects.toThrow(/sample 13.*no such picture/);
    expect(loader.stateDict()).toMatchObject({ served: 12 });
  });

  test.each([
    ['text', /sample 13.*only text/],
    ['odd', /making the batch of sample 12: .*sample\[1\]: expected a number, got String/],
  ])('"%s"', (trouble, message) => {
    expect(() => [...loadTroubled(trouble)]).toThrow(message);
  });

  test('a sample that cannot cross threads', () => {
    const loader = loadTroubled('uncloneable', { collate: (samples) => samples });
    expect(() => [...loader]).toThrow(/DataCloneError: .*could not be cloned/);
  });

  test.each(['worker', 'caller'])('a tensor, if the %s stacks samples', (where) => {
    const options = where === 'worker' ? {} : { collate: (samples: unknown[]) => samples };
    const loader = loaderOf(dataset('troubledDataset', 4, 0, 'tensor'), options);
    expect(() => [...loader]).toThrow(/sample.*: expected numbers .* got a tensor.*numWorkers 0/);
  });

  test.each(['for', 'for await'])('a worker that ends, in `%s`', async (loop) => {
    const run = async (loader: DataLoader<unknown, unknown>): Promise<unknown> =>
      loop === 'for' ? [...loader] : collect(loader);
    await expect(run(loadTroubled('exit'))).rejects.toThrow(
      /worker 0: expected a running thread, got exit code 7 in sample 13/,
    );
    await expect(run(loadTroubled('uncaught'))).rejects.toThrow(
      /worker 0.*SampleError: from a timer/,
    );
  });

  // Node 24 ends the whole process instead, with a bare Worker as well.
  const major = Number(process.versions.node.split('.')[0]);
  (major < 24 ? test : test.skip)('a worker that runs out of memory', async () => {
    const resourceLimits = { maxOldGenerationSizeMb: 24 };
    const options = { workerThread: { ...workerThread, resourceLimits } };
    const message = /worker 0, in sample 13.*memory limit/;
    expect(() => [...loadTroubled('memory', options)]).toThrow(message);
    await expect(collect(loadTroubled('memory', options))).rejects.toThrow(message);
  });

  test.each(['stall', 'promise'])('a worker that stalls (%s)', async (trouble) => {
    const loops = [
      async (loader: DataLoader<unknown, unknown>) => [...loader],
      (loader: DataLoader<unknown, unknown>) => collect(loader),
    ];
    for (const loop of loops) {
      const { error, limit } = await stalledAt('in sample 13', (workerTimeoutMs) =>
        loop(loadTroubled(trouble, { workerTimeoutMs })),
      );
      expect(error.message).toMatch(
        new RegExp(
          `worker 0: expected a batch within ${limit} ms, .* in sample 13.*workerTimeoutMs`,
        ),
      );
    }
  });

  test.each([
    ['failToBuild', /building its dataset.*RangeError: no data here/],
    ['missing', /a function exported as "missing", got undefined/],
    ['notAFunction', /exported as "notAFunction", got number/],
    ['notADataset', /a dataset with length and get/],
  ])('a dataset that cannot be built: %s', (name, message) => {
    const data = workerDataset({ module: MODULE, export: name, length: 4 });
    expect(() => [...loaderOf(data, {})]).toThrow(message);
    expect(() => workerDataset({ module: MODULE, export: name }).length).toThrow();
  });

  test('a missing module', () => {
    const data = workerDataset({ module: '/nowhere/at-all.js', length: 4 });
    expect(() => [...loaderOf(data, {})]).toThrow(/Cannot find module '\/nowhere/);
    expect(() => data.get(0)).toThrow(expect.objectContaining({ code: 'DS_ARGUMENT' }));
  });

  test('errors of a plain dataset and of uncopyable arguments contain the fix', () => {
    const plain: Dataset<number> = { length: 4, get: (i) => i };
    expect(() => loaderOf(plain, {})).toThrow(/workerDataset\(\{ module: require.resolve/);
    const data = workerDataset({ module: MODULE, export: 'numbers', args: [() => 1], length: 4 });
    expect(() => [...loaderOf(data, {})]).toThrow(/could not be cloned.*Pass plain data/);
    for (const options of [{ numWorkers: -1 }, { prefetchFactor: 0 }, { workerTimeoutMs: 0 }]) {
      expect(() => loaderOf(dataset('numbers', 4), options)).toThrow(
        expect.objectContaining({ code: 'DS_ARGUMENT' }),
      );
    }
  });

  test('after a failure, the loader continues at its position', () => {
    const loader = loadTroubled('throw', { collate: (samples) => samples });
    for (let round = 0; round < 2; ++round) {
      expect(() => [...loader]).toThrow('no such picture');
      expect(loader.stateDict()).toMatchObject({ served: 12 });
    }
  });

  test('an iteration that a later one has replaced throws', () => {
    const loader = loaderOf(dataset('numbers', 9), { shuffle: false, collate: asList });
    const first = loader[Symbol.iterator]();
    expect(first.next().value).toEqual([0]);
    const second = loader[Symbol.iterator]();
    expect(second.next().value).toEqual([1]);
    expect(() => first.next()).toThrow(/one iteration at a time/);
    expect(second.next().value).toEqual([2]);
    second.return?.(undefined);
  });
});

describe('threads', () => {
  test('end after the iteration, break, an error and close()', async () => {
    const before = await threadsAfterWarmUp();
    const loader = loaderOf(dataset('numbers', 40), { collate: asList });
    expect([...loader]).toHaveLength(40);
    await loader.close();
    expect(await threadsComingTo(before)).toBe(before);
    for (const [n] of loader) if (n !== undefined) break;
    await loader.close();
    expect(await threadsComingTo(before)).toBe(before);
    const failing = loaderOf(dataset('troubledDataset', 9, 3, 'throw'), {});
    expect(() => [...failing]).toThrow();
    await failing.close();
    expect(await threadsComingTo(before)).toBe(before);
    const iterator = loader[Symbol.iterator]();
    iterator.next();
    expect(threads()).toBeGreaterThanOrEqual(before + 4);
    await loader[Symbol.asyncDispose]();
    expect(await threadsComingTo(before)).toBe(before);
    expect(() => iterator.next()).toThrow(/one iteration at a time/);
  });

  test('persistent workers survive a pass', async () => {
    const before = await threadsAfterWarmUp();
    const loader = loaderOf(dataset('numbers', 6), { collate: asList, persistentWorkers: true });
    for (let epoch = 0; epoch < 3; ++epoch) {
      expect([...loader].flat().sort()).toEqual([0, 1, 2, 3, 4, 5]);
      expect(threads()).toBeGreaterThanOrEqual(before + 4);
    }
    await loader.close();
    expect(await threadsComingTo(before)).toBe(before);
  });

  test.each(['for', 'for await'])('do not keep a process alive that ends in `%s`', (loop) => {
    const script = join(__dirname, 'unfinished-process.ts');
    const { status, stdout, stderr } = spawnSync(process.execPath, ['-r', HOOK, script, loop], {
      encoding: 'utf8',
      timeout: 300_000,
    });
    expect({ status, stdout, stderr }).toEqual({ status: 0, stdout: 'left after 2\n', stderr: '' });
  });
});

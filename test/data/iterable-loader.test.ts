// Samples that come in turn: rounds of ranks and workers, positions that resume anywhere, and
// failures that name the sample.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import {
  DataLoader,
  type IterableDataset,
  IterableLoader,
  type IterableLoaderOptions,
  RepeatingLoader,
  workerIterable,
} from '../../lib/data/index.js';
import { type Engine, initialize, nn, type Tensor } from '../../lib/index.js';
import { stalledAt } from './stalls.js';

const MODULE = join(__dirname, 'worker-datasets.ts');
const workerThread = { execArgv: ['-r', join(__dirname, '..', 'support', 'run-typescript.cjs')] };
const asList = (samples: number[]): number[] => samples;

type Options = IterableLoaderOptions<number, number[]>;

/** 0 to length - 1 plus 100 times the epoch. */
const countTo = (length: number): IterableDataset<number> => ({
  *iterate(epoch) {
    for (let i = 0; i < length; ++i) yield 100 * epoch + i;
  },
});

/** The same, built by threads. */
const countInThread = (length: number, ...more: number[]): IterableDataset<number> =>
  workerIterable({ module: MODULE, export: 'countedDataset', args: [length, ...more] });

const loaderOf = (data: IterableDataset<number>, options: Options = {}) =>
  new IterableLoader(data, { collate: asList, workerThread, ...options });

async function collect<Batch>(loader: AsyncIterable<Batch>, limit = 1e9): Promise<Batch[]> {
  const batches: Batch[] = [];
  for await (const batch of loader) if (batches.push(batch) === limit) break;
  return batches;
}

const ranksOf = (length: number, worldSize: number, options: Options = {}) =>
  Array.from({ length: worldSize }, (_, rank) =>
    loaderOf(countTo(length), { rank, worldSize, ...options }),
  );

test('one rank serves the samples in order, epoch after epoch, synchronously and asynchronously', async () => {
  const loader = loaderOf(countTo(5), { batchSize: 2 });
  expect([...loader]).toEqual([[0, 1], [2, 3], [4]]);
  expect(loader.epoch).toBe(1);
  expect(await collect(loader)).toEqual([[100, 101], [102, 103], [104]]);
  const dropping = loaderOf(countTo(5), { batchSize: 2, dropLast: true });
  expect([...dropping]).toEqual([
    [0, 1],
    [2, 3],
  ]);
  loader.setEpoch(7);
  const [first] = [...loader];
  expect(first).toEqual([700, 701]);
});

test('round g has samples [g B N, (g + 1) B N); rank r takes those with index r modulo N', () => {
  const ranks = ranksOf(12, 3, { batchSize: 2 }).map((loader) => [...loader]);
  expect(ranks).toEqual([
    [
      [0, 3],
      [6, 9],
    ],
    [
      [1, 4],
      [7, 10],
    ],
    [
      [2, 5],
      [8, 11],
    ],
  ]);
});

test.each([1, 2, 3, 4, 5, 7, 8, 11])(
  'all ranks keep or all ranks drop a last round of %d of 12 samples',
  (left) => {
    const batches = (dropLast: boolean) =>
      ranksOf(12 + left, 4, { batchSize: 3, dropLast }).map((loader) => [...loader]);
    expect(batches(true).map((list) => list.length)).toEqual([1, 1, 1, 1]);
    const last = batches(false).map((list) => list[1] as number[]);
    const each = Math.ceil(left / 4);
    expect(last.map((batch) => batch.length)).toEqual([each, each, each, each]);
    // In turn, and then from the round's beginning again.
    const dealt = Array.from({ length: 4 * each }, (_, i) => last[i % 4]?.[Math.floor(i / 4)]);
    expect(dealt).toEqual(Array.from({ length: 4 * each }, (_, i) => 12 + (i % left)));
  },
);

test.each([1, 2, 5])(
  '%d workers serve the same samples as no workers, for all ranks and epochs',
  async (numWorkers) => {
    for (const dropLast of [false, true]) {
      const shape = { batchSize: 2, rank: 1, worldSize: 3, dropLast };
      const plain = loaderOf(countTo(20), shape);
      const expected = [[...plain], [...plain]];
      const loader = loaderOf(countInThread(20), { ...shape, numWorkers, persistentWorkers: true });
      expect([[...loader], await collect(loader)]).toEqual(expected);
      await loader.close();
    }
  },
);

test('without workers the calling thread builds the dataset', async () => {
  expect(await collect(loaderOf(countInThread(3)))).toEqual([[0], [1], [2]]);
});

test.each([0, 2])(
  'a saved position continues with the next sample on any number of ranks, %d workers',
  async (n) => {
    const options = { batchSize: 2, numWorkers: n };
    const two = [0, 1].map((rank) =>
      loaderOf(countInThread(20), { ...options, rank, worldSize: 2 }),
    );
    const before = await Promise.all(two.map((loader) => collect(loader, 2)));
    expect(before.flat(2).sort((a, b) => a - b)).toEqual([0, 1, 2, 3, 4, 5, 6, 7]);
    const states = two.map((loader) => loader.stateDict());
    expect(states[0]).toEqual(states[1]);
    const state = JSON.parse(JSON.stringify(states[0]));
    const one = loaderOf(countInThread(20), options);
    one.loadStateDict(state);
    expect((await collect(one)).flat()).toEqual(Array.from({ length: 12 }, (_, i) => 8 + i));
    expect((await collect(one, 1))[0]).toEqual([100, 101]);
  },
);

test('a position at the end of an epoch continues with the next epoch', () => {
  const loader = loaderOf(countTo(4), { batchSize: 2 });
  loader.loadStateDict({ epoch: 3, served: 4, samples: null });
  expect([...loader]).toEqual([
    [400, 401],
    [402, 403],
  ]);
});

test('a running iteration continues at a loaded state', async () => {
  const loader = loaderOf(countTo(6));
  const seen: number[] = [];
  for await (const [sample] of loader) {
    seen.push(sample as number);
    if (seen.length === 2) loader.loadStateDict({ epoch: 1, served: 3, samples: null });
  }
  expect(seen).toEqual([0, 1, 103, 104, 105]);
});

test('an iteration abandoned while it waits takes no sample from the next one', async () => {
  const loader = loaderOf(countInThread(4));
  const first = loader[Symbol.asyncIterator]();
  const waiting = first.next();
  const all = collect(loader);
  expect((await waiting).value).toEqual([0]);
  expect(await all).toEqual([[0], [1], [2], [3]]);
  await expect(first.next()).rejects.toMatchObject({ code: 'DS_DATA' });
});

test('samples before a position are skipped, by the loader or by the dataset', () => {
  const asked: number[][] = [];
  const data = {
    ...countTo(10),
    *iterateFrom(epoch: number, start: number) {
      asked.push([epoch, start]);
      for (let i = start; i < 10; ++i) yield 100 * epoch + i;
    },
  };
  const loader = loaderOf(data, { batchSize: 2 });
  loader.loadStateDict({ epoch: 2, served: 6, samples: null });
  expect([...loader]).toEqual([
    [206, 207],
    [208, 209],
  ]);
  expect(asked).toEqual([[2, 6]]);
});

test('generators end with their iteration, wherever it stops', async () => {
  let open = 0;
  const data: IterableDataset<number> = {
    *iterate() {
      open++;
      try {
        for (let i = 0; ; ++i) yield i;
      } finally {
        open--;
      }
    },
  };
  const loader = loaderOf(data);
  for (const [sample] of loader) if (sample === 3) break;
  expect(open).toBe(0);
  await collect(loader, 2);
  expect(open).toBe(0);
  expect(loader.stateDict()).toEqual({ epoch: 0, served: 6, samples: null });
});

test('samples are stacked, and RepeatingLoader never ends', () => {
  const loader = new RepeatingLoader(new IterableLoader(countTo(3), { batchSize: 2 }));
  const batches = Array.from({ length: 4 }, () => loader.next().value as Tensor);
  expect(batches.map((batch) => batch.toArray())).toEqual([[0, 1], [2], [100, 101], [102]]);
  for (const batch of batches) batch.dispose();
});

describe('errors name the sample', () => {
  const failing = countInThread(9, 5);

  test('a sample that fails, and the position stays', async () => {
    const loader = loaderOf(failing, { batchSize: 2 });
    const failed = {
      code: 'DS_DATA',
      op: 'IterableLoader, sample 5 of epoch 0',
      got: 'SampleError: no such line',
      cause: { name: 'SampleError' },
    };
    await expect(collect(loader)).rejects.toMatchObject(failed);
    expect(loader.stateDict()).toMatchObject({ epoch: 0, served: 4 });
    await expect(collect(loader)).rejects.toMatchObject(failed);
  });

  test('a sample that fails in a worker', async () => {
    const loader = loaderOf(failing, { batchSize: 2, numWorkers: 2 });
    await expect(collect(loader)).rejects.toMatchObject({
      code: 'DS_DATA',
      op: 'DataLoader worker 0, in sample 5',
      got: 'SampleError: no such line',
    });
    expect(loader.stateDict()).toMatchObject({ served: 4 });
  });

  test('a sample that never arrives', async () => {
    const data = workerIterable<number>({ module: MODULE, export: 'stuck', args: [9] });
    const { error } = await stalledAt('in sample 2', (workerTimeoutMs) =>
      collect(loaderOf(data, { numWorkers: 1, workerTimeoutMs })),
    );
    expect(error).toMatchObject({ got: 'no batch; the worker is in sample 2' });
  });

  test('an epoch without a batch', async () => {
    expect(() => [...loaderOf(countTo(0))]).toThrow('epoch 0: expected samples, got no samples');
    const dropping = loaderOf(countTo(5), { batchSize: 3, worldSize: 2, dropLast: true });
    await expect(collect(dropping)).rejects.toMatchObject({
      code: 'DS_DATA',
      expected: '6 samples: a batch for each rank',
      got: 'fewer samples',
    });
  });

  test('samples that take time in a plain for', () => {
    expect(() => [...loaderOf(countInThread(3))]).toThrow('Iterate with `for await`.');
    const promised = { iterate: () => [Promise.resolve(1)] };
    expect(() => [...loaderOf(promised)]).toThrow('got a dataset of promises');
  });

  test('promises that fail', async () => {
    const promised: IterableDataset<number> = {
      *iterate() {
        yield 1;
        yield Promise.reject(new Error('gone'));
      },
    };
    await expect(collect(loaderOf(promised))).rejects.toMatchObject({
      op: 'IterableLoader, sample 1 of epoch 0',
      got: 'Error: gone',
    });
  });

  test.each<[string, () => unknown, string]>([
    [
      'a generator, which is gone through but once',
      () => loaderOf(countTo(3).iterate(0) as never),
      'IterableLoader: expected a dataset with iterate(epoch)',
    ],
    ['a rank outside', () => loaderOf(countTo(3), { rank: 2, worldSize: 2 }), 'world size 2'],
    ['an unknown option', () => loaderOf(countTo(3), { shuffle: true } as never), '"shuffle"'],
    ['workers of an object', () => loaderOf(countTo(3), { numWorkers: 1 }), 'worker thread'],
    ['no module', () => workerIterable({ module: 'x.js' }), 'workerIterable module'],
    ['the other loader', () => new DataLoader(countTo(3) as never), 'data.IterableLoader'],
    [
      'the state of the other loader',
      () => loaderOf(countTo(3)).loadStateDict({ epoch: 0, served: 0, samples: 9 }),
      'got the position in a dataset of 9 samples',
    ],
  ])('%s', (_, body, message) => expect(body).toThrow(message));

  test('an export that is not a dataset', async () => {
    const data = workerIterable<number>({ module: MODULE, export: 'numbers', args: [3] });
    await expect(collect(loaderOf(data))).rejects.toMatchObject({
      got: expect.stringContaining('expected a dataset with iterate(epoch), got an object'),
    });
  });
});

test('initialize() serves it in micro-batches, and checkpoints keep the position', async () => {
  class Line extends nn.Module {
    readonly layer = new nn.Linear(1, 1);

    forward(x: Tensor): Tensor {
      return this.layer.call(x.reshape([-1, 1])).mean();
    }
  }
  const dir = mkdtempSync(join(tmpdir(), 'ds-iterable-'));
  const config = { train_batch_size: 2, optimizer: { type: 'AdamW' as const, params: { lr: 1 } } };
  const start = () =>
    initialize({ model: new Line(), config, device: 'cpu', trainingData: countTo(9) });
  const engines: Engine[] = [];
  try {
    const { engine, trainLoader } = await start();
    engines.push(engine);
    const seen: unknown[] = [];
    for await (const batch of trainLoader) {
      seen.push(batch.toArray());
      engine.backward(engine.forward<Tensor>(batch));
      engine.step();
      batch.dispose();
      if (seen.length === 2) break;
    }
    expect(seen).toEqual([
      [0, 1],
      [2, 3],
    ]);
    await engine.saveCheckpoint(dir);
    const resumed = await start();
    engines.push(resumed.engine);
    await resumed.engine.loadCheckpoint(dir);
    const rest = await collect(resumed.trainLoader);
    expect(rest.map((batch) => batch.toArray())).toEqual([[4, 5], [6, 7], [8]]);
    for (const batch of rest) batch.dispose();
  } finally {
    for (const engine of engines) engine.destroy();
    rmSync(dir, { recursive: true });
  }
});

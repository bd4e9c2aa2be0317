// The train loader in the engine's checkpoints: no sample is repeated or dropped, with and without
// workers, and at another world size.
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { DataLoader, DistributedSampler, workerDataset } from '../../lib/data/index.js';
import { type DsConfig, type Engine, initialize, nn, type Tensor } from '../../lib/index.js';

const HOOK = join(__dirname, '..', 'support', 'run-typescript.cjs');

class Line extends nn.Module {
  readonly layer = new nn.Linear(1, 1);

  forward(x: Tensor): Tensor {
    return this.layer.call(x.reshape([-1, 1])).mean();
  }
}

const config: DsConfig = {
  train_batch_size: 3,
  seed: 7,
  optimizer: { type: 'AdamW', params: { lr: 1e-2 } },
};

let dir: string;
let engines: Engine[];
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'ds-loader-'));
  engines = [];
});
afterEach(() => {
  for (const engine of engines) engine.destroy();
  rmSync(dir, { recursive: true });
});

async function start(length: number, numWorkers: number, more: Partial<DsConfig> = {}) {
  const trainingData = workerDataset<number>({
    module: join(__dirname, 'worker-datasets.ts'),
    export: 'numbers',
    args: [length],
  });
  const options = { model: new Line(), config: { ...config, ...more }, device: 'cpu' };
  const { engine, trainLoader } = await initialize({ ...options, trainingData });
  if (!trainLoader) throw new Error('no loader');
  engines.push(engine);
  // The same loader, with threads that run TypeScript.
  const loader = new DataLoader<number>(trainingData, {
    batchSize: 3,
    seed: 7,
    numWorkers,
    workerThread: { execArgv: ['-r', HOOK] },
  });
  if (numWorkers > 0) engine.companions.set('trainLoader', loader);
  return { engine, loader: numWorkers > 0 ? loader : trainLoader };
}

/** Trains on up to `steps` batches of the epoch; returns the samples. */
function train(engine: Engine, loader: Iterable<Tensor>, steps = Number.POSITIVE_INFINITY) {
  const seen: number[][] = [];
  for (const batch of loader) {
    seen.push(batch.toArray());
    engine.backward(engine.forward<Tensor>(batch));
    engine.step();
    batch.dispose();
    if (seen.length === steps) break;
  }
  return seen;
}

test.each([0, 3])(
  'a run that resumes in the middle of an epoch sees the same samples, %d workers',
  async (n) => {
    const fullResult = await start(20, n);
    const expected = [
      train(fullResult.engine, fullResult.loader),
      train(fullResult.engine, fullResult.loader),
    ];
    const first = await start(20, n);
    const before = train(first.engine, first.loader, 4);
    await first.engine.saveCheckpoint(dir);
    const second = await start(20, n);
    await second.engine.loadCheckpoint(dir);
    expect([...before, ...train(second.engine, second.loader)]).toEqual(expected[0]);
    expect(train(second.engine, second.loader)).toEqual(expected[1]);
  },
);

test('an older checkpoint, or loadCompanions: false, keeps the position of the loader', async () => {
  const first = await start(20, 0);
  train(first.engine, first.loader, 2);
  const path = await first.engine.saveCheckpoint(dir, { tag: 'a' });
  const second = await start(20, 0);
  await second.engine.loadCheckpoint(dir, { loadCompanions: false });
  expect(second.loader.stateDict()).toMatchObject({ served: 0 });
  await second.engine.loadCheckpoint(dir, { loadOptimizerStates: false });
  expect(second.loader.stateDict()).toMatchObject({ served: 0 });
  const manifest = JSON.parse(readFileSync(join(path, 'manifest.json'), 'utf8'));
  expect(JSON.stringify(manifest)).toContain('"companions":{"trainLoader":{');
  first.engine.companions.clear();
  await first.engine.saveCheckpoint(dir, { tag: 'b' });
  await second.engine.loadCheckpoint(dir, { tag: 'b' });
  expect(second.loader.stateDict()).toMatchObject({ served: 0 });
});

test('a loader over other data is refused by name', async () => {
  const first = await start(20, 0);
  await first.engine.saveCheckpoint(dir);
  const second = await start(21, 0);
  await expect(second.engine.loadCheckpoint(dir)).rejects.toThrow(
    /21 samples, got the position in a dataset of 20/,
  );
});

test('dataloader_drop_last reaches the loader', async () => {
  const { engine, loader } = await start(20, 0, { dataloader_drop_last: true });
  expect(loader.length).toBe(6);
  expect(train(engine, loader).map((batch) => batch.length)).toEqual([3, 3, 3, 3, 3, 3]);
});

const asList = (samples: number[]): number[] => samples;

function rankLoader(samples: number, rank: number, worldSize: number, batchSize: number) {
  const sampler = new DistributedSampler(samples, { rank, worldSize, seed: 3 });
  const data = { length: samples, get: (i: number) => i };
  return new DataLoader(data, { sampler, batchSize, collate: asList });
}

test.each([
  [1, 4],
  [4, 1],
  [2, 3],
  [3, 2],
  [4, 4],
])('a position of %d ranks resumes with %d', (from, to) => {
  const samples = 61;
  const before: number[] = [];
  const states = Array.from({ length: from }, (_, rank) => {
    const loader = rankLoader(samples, rank, from, 2);
    const batches = loader[Symbol.iterator]();
    for (let i = 0; i < 3; ++i) before.push(...(batches.next().value as number[]));
    return JSON.stringify(loader.stateDict());
  });
  expect(new Set(states).size).toBe(1);
  const after = Array.from({ length: to }, (_, rank) => {
    const loader = rankLoader(samples, rank, to, 2);
    loader.loadStateDict(JSON.parse(states[0] as string));
    return [...loader].flat();
  });
  expect(new Set(before).size).toBe(6 * from);
  const padding = Math.ceil((samples - 6 * from) / to) * to - (samples - 6 * from);
  expect(after.flat()).toHaveLength(samples - 6 * from + padding);
  expect(new Set([...before, ...after.flat()]).size).toBe(samples);
  const twice = after.flat().filter((x) => before.includes(x));
  expect(twice.length).toBeLessThanOrEqual(padding);
});

// Tests data_efficiency.data_sampling in initialize(): the samples of its loader, and resume.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { resolveConfig } from '../../lib/config/index.js';
import {
  requireSameDraws,
  requireSameMetrics,
  warnUnserved,
} from '../../lib/engine/data-sampling.js';
import { type DsConfig, data, type Engine, initialize, nn, type Tensor } from '../../lib/index.js';
import { refusal } from '../support/refusal.js';

const LENGTH = 30;
/** The difficulty of sample i: 1 to 6. */
const easeOf = (i: number): number => 1 + (i % 6);

class Line extends nn.Module {
  readonly layer = new nn.Linear(1, 1);

  forward(x: Tensor): Tensor {
    return this.layer.call(x.reshape([-1, 1])).mean();
  }
}

let dir: string;
let index: data.AnalyzedMetric;
const open: Engine[] = [];
beforeAll(async () => {
  dir = mkdtempSync(join(tmpdir(), 'ds-sampling-'));
  const metrics = { ease: (_sample: number, i: number) => easeOf(i) };
  index = (await data.analyze(samples, { metrics, folder: dir })).ease;
});
afterEach(() => {
  for (const engine of open.splice(0)) engine.destroy();
});
afterAll(() => {
  rmSync(dir, { recursive: true });
});

const samples: data.Dataset<number> = { length: LENGTH, get: (i) => i };

type Metric = Record<string, unknown>;

const samplingConfig = (more: Metric = {}, outer: Record<string, unknown> = {}): DsConfig => ({
  train_micro_batch_size_per_gpu: 3,
  gradient_accumulation_steps: 2,
  optimizer: { type: 'AdamW', params: { lr: 1e-2 } },
  data_efficiency: {
    enabled: true,
    seed: 9,
    data_sampling: {
      enabled: true,
      ...outer,
      curriculum_learning: {
        enabled: true,
        curriculum_metrics: {
          ease: {
            index_to_sample_path: index.indexToSamplePath,
            index_to_metric_path: index.indexToMetricPath,
            difficulty_type: 'value',
            clustering_type: 'schedule_based',
            min_difficulty: 1,
            max_difficulty: 6,
            schedule_type: 'fixed_linear',
            schedule_config: { total_curriculum_step: 5, difficulty_step: 1 },
            ...more,
          },
        },
      },
    },
  },
});

async function start(config: DsConfig = samplingConfig()) {
  const options = { model: new Line(), config, device: 'cpu', trainingData: samples };
  const { engine, trainLoader } = await initialize<number, Tensor>(options);
  open.push(engine);
  return { engine, trainLoader: trainLoader as data.DataLoader<number, Tensor> };
}

type Started = Awaited<ReturnType<typeof start>>;

/** The samples of each micro-batch, up to `maxSteps` of the epoch, each trained on. */
function train({ engine, trainLoader }: Started, maxSteps = Number.POSITIVE_INFINITY): number[][] {
  const seen: number[][] = [];
  for (const batch of trainLoader) {
    seen.push(batch.toArray());
    engine.backward(engine.forward<Tensor>(batch));
    engine.step();
    batch.dispose();
    if (seen.length === maxSteps) break;
  }
  return seen;
}

test('all micro-batches of a step have samples within difficulty 1 + step', async () => {
  const started = await start();
  const batches = [...train(started), ...train(started)];
  expect(batches).toHaveLength(20);
  for (const [i, batch] of batches.entries()) {
    const step = 1 + Math.floor(i / 2);
    for (const sample of batch) expect(easeOf(sample)).toBeLessThanOrEqual(Math.min(1 + step, 6));
  }
  expect(started.engine.globalSteps).toBe(10);
  expect(new Set(batches.slice(10).flat().map(easeOf))).toEqual(new Set([1, 2, 3, 4, 5, 6]));
});

test('equals a custom sampler with the seed of the section', async () => {
  const metrics = {
    ease: {
      values: Array.from({ length: LENGTH }, (_, i) => easeOf(i)),
      schedule: data.fixedRoot({ min: 1, max: 6, totalSteps: 5 }),
      maxDifficulty: 6,
    },
  };
  const sampler = new data.CurriculumSampler(LENGTH, { metrics, batchSize: 6, seed: 9 });
  expect(train(await start()).flat()).toEqual([...sampler]);
});

test.each([3, 4, 10, 13])(
  'a run that is resumed after %i micro-batches sees the same',
  async (stop) => {
    const fullResult = await start();
    const expected = [...train(fullResult), ...train(fullResult), ...train(fullResult)];
    const first = await start();
    const before = [
      ...train(first, Math.min(stop, 10)),
      ...(stop > 10 ? train(first, stop - 10) : []),
    ];
    const folder = mkdtempSync(join(dir, 'run-'));
    await first.engine.saveCheckpoint(folder);
    const second = await start();
    await second.engine.loadCheckpoint(folder);
    const rest = [...train(second), ...train(second), ...(stop < 10 ? train(second) : [])];
    expect([...before, ...rest].slice(0, 30)).toEqual(expected.slice(0, 30));
    const { trainLoader } = await start({ ...samplingConfig(), gradient_accumulation_steps: 1 });
    const { epoch = null, served = null } = first.trainLoader.stateDict();
    const state = { epoch, served, samples: LENGTH, seed: 9, batchSize: 6 };
    expect(first.trainLoader.stateDict()).toEqual(state);
    expect(() => trainLoader.loadStateDict(state)).toThrow('a position in steps of 3 samples');
  },
);

test('ranks that have read other files are refused, and named', async () => {
  const samplerWith = (last: number) => {
    const values = Array.from({ length: LENGTH }, (_, i) => (i < 29 ? easeOf(i) : last));
    const metric = { values, schedule: () => 6, maxDifficulty: 6 };
    const all = { ...metric, clusteringType: 'single_cluster' } as const;
    return new data.CurriculumSampler(LENGTH, { metrics: { all, ease: metric }, batchSize: 6 });
  };
  const compareMetrics = (...lasts: number[]) =>
    requireSameMetrics(samplerWith(1), async (options) => {
      expect(options).toEqual(samplerWith(1).digests());
      return [options, ...lasts.map((last) => samplerWith(last).digests())];
    });
  await compareMetrics(1, 1);
  const error = await refusal(() => compareMetrics(1, 2));
  expect(error.code).toBe('DS_DATA');
  expect(error.message).toMatch(
    /curriculum_metrics\.ease: expected index files with the contents of rank 0, got different contents on rank 2/,
  );
  const { trainLoader } = await start({ ...samplingConfig(), data_efficiency: { enabled: false } });
  await requireSameMetrics(trainLoader.sampler, () => Promise.reject(new Error('asked')));
});

test('an engine with other index files than another rank is destroyed, on all ranks', async () => {
  const jobOf = (worldSize: number, other: unknown) => {
    const texts = new Map<string, string>();
    const store = {
      set: async (key: string, value: string) => void texts.set(key, value),
      get: async (key: string) => texts.get(key) as string,
      delete: async (key: string) => texts.delete(key),
    };
    const message = JSON.stringify({
      label: 'initialize',
      value: { value: other },
      absenceReports: null,
    });
    texts.set('setup/0/1', `1:${message}`);
    const rest = { timeout: 60_000, nextName: () => 'setup', world: { check() {} } };
    return { rank: 0, worldSize, store, ...rest } as never;
  };
  const { engine, trainLoader } = await start();
  const own = (trainLoader.sampler as data.CurriculumSampler).digests();
  const destroyed = jest.spyOn(engine, 'destroy');
  await requireSameDraws(jobOf(2, own), engine, trainLoader);
  await requireSameDraws(jobOf(1, {}), engine, trainLoader);
  await requireSameDraws(jobOf(2, {}), engine, samples);
  const off = { ...engine, config: resolveConfig({ train_batch_size: 1 }, { worldSize: 1 }) };
  await requireSameDraws(jobOf(2, {}), off as never, trainLoader);
  expect(destroyed).not.toHaveBeenCalled();
  const error = await refusal(() => requireSameDraws(jobOf(2, {}), engine, trainLoader));
  expect(error).toMatchObject({ code: 'DS_DATA', got: 'different contents on rank 1' });
  expect(destroyed).toHaveBeenCalledTimes(1);
  open.length = 0;
});

test('batches end with num_epochs', async () => {
  const started = await start(samplingConfig({}, { num_epochs: 1 }));
  expect(train(started)).toHaveLength(10);
  expect((await refusal(() => train(started))).message).toMatch(/the end of the CurriculumSampler/);
});

test('the program sets a custom schedule before the first batch', async () => {
  const started = await start(samplingConfig({ schedule_type: 'custom' }));
  const error = await refusal(() => train(started));
  expect(error.message).toMatch(
    /curriculum_metrics\.ease\.schedule_type: .* trainLoader\.sampler\.setSchedules\(\{ ease: \(step\)/,
  );
  const sampler = started.trainLoader.sampler as data.CurriculumSampler;
  sampler.setSchedules({ ease: (step) => (step < 3 ? 1 : 2) });
  const seen = train(started);
  expect(new Set(seen.slice(0, 4).flat().map(easeOf))).toEqual(new Set([1]));
  expect(new Set(seen.slice(4).flat().map(easeOf))).toEqual(new Set([1, 2]));
});

test('settings without effect are refused or reported', async () => {
  const config = samplingConfig();
  const more = { model: new Line(), config, device: 'cpu' };
  const stream = { iterate: () => [1, 2, 3] };
  const error = await refusal(() => initialize({ ...more, trainingData: stream }));
  expect(error.code).toBe('DS_CONFIG');
  expect(error.message).toMatch(/trainingData, data_efficiency.data_sampling: expected a dataset/);
  const other = { length: 31, get: (i: number) => i };
  const wrong = await refusal(() => initialize({ ...more, trainingData: other }));
  expect(wrong.message).toMatch(/index of the 31 samples of the dataset, got 30/);
  const warnings = jest.spyOn(process, 'emitWarning').mockImplementation(() => {});
  const { engine } = await initialize(more);
  open.push(engine);
  warnUnserved(engine.config, 1); // Other ranks do not log.
  warnUnserved(resolveConfig({ train_batch_size: 1 }, { worldSize: 1 }), 0);
  const notices = warnings.mock.calls.map(([text]) => text);
  warnings.mockRestore();
  expect(notices).toEqual([expect.stringMatching(/data_sampling has no effect without trainingD/)]);
});

// Tests Trainers that draw samples by difficulty, as configured.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type DsConfig, data, Trainer, type TrainerOptions } from '../../lib/index.js';
import { refusal } from '../support/refusal.js';
import { samples, tinyModel, type Window, weightsOf } from './tiny.js';

const LENGTH = 24;
const easeOf = (i: number): number => 1 + (i % 4);

let dir: string;
let index: data.AnalyzedMetric;
beforeAll(async () => {
  dir = mkdtempSync(join(tmpdir(), 'ds-sampled-'));
  const metrics = { ease: (_: unknown, i: number) => easeOf(i) };
  index = (await data.analyze(samples(LENGTH), { metrics, folder: dir })).ease;
});
afterAll(() => rmSync(dir, { recursive: true }));

const deepspeed = (): DsConfig => ({
  data_efficiency: {
    enabled: true,
    data_sampling: {
      enabled: true,
      curriculum_learning: {
        enabled: true,
        curriculum_metrics: {
          ease: {
            index_to_sample_path: index.indexToSamplePath,
            index_to_metric_path: index.indexToMetricPath,
            min_difficulty: 1,
            max_difficulty: 4,
            schedule_type: 'fixed_discrete',
            schedule_config: { difficulty: [1, 3, 4], max_step: [2, 5] },
          },
        },
      },
    },
  },
});

/** Records the requested samples, in order. */
function watchedDataset(asked: number[]): data.Dataset<Window> {
  const all = samples(LENGTH);
  const get = (i: number): Window => {
    asked.push(i);
    return all.get(i) as Window;
  };
  return { length: LENGTH, get };
}

async function trainWindows(options: Partial<TrainerOptions<Window>>, resume = false) {
  const asked: number[] = [];
  const trainer = new Trainer<Window>({
    model: tinyModel(),
    train: watchedDataset(asked),
    device: 'cpu',
    progress: false,
    batchSize: 2,
    accumulation: 2,
    epochs: 2,
    schedule: 'constant',
    stopSignals: [],
    deepspeed: deepspeed(),
    ...options,
  });
  const steps: number[] = [];
  for await (const event of trainer.train({ resume })) steps.push(event.step);
  const weights = weightsOf((await trainer.engine()).module);
  await trainer.destroy();
  return { asked, weights, last: steps.at(-1) };
}

test('updates use samples within their difficulty, also after a resume', async () => {
  const fullResult = await trainWindows({});
  expect(fullResult.last).toBe(12);
  // The first sample shows whether rows need padding.
  const batches = fullResult.asked.slice(1);
  expect(batches).toHaveLength(2 * LENGTH);
  const limits = [1, 1, 3, 3, 3, 4, 4, 4, 4, 4, 4, 4];
  for (const [i, sample] of batches.entries()) {
    expect(easeOf(sample)).toBeLessThanOrEqual(limits[Math.floor(i / 4)] as number);
  }
  const save = { dir: join(dir, 'run'), every: 5 };
  await trainWindows({ save, maxSteps: 5 });
  const rest = await trainWindows({ save }, true);
  expect(rest.asked.slice(1)).toEqual(batches.slice(20));
  expect(rest.weights).toEqual(fullResult.weights);
});

test.each<[string, Partial<TrainerOptions<Window>>, RegExp]>([
  [
    'an order of its own',
    { data: { sampling: 'sequential' } },
    /data.sampling: expected "random" with data_eff.* got "seq/,
  ],
  [
    'samples in turn',
    { train: { iterate: () => [] } as never },
    /Trainer data, data_efficiency.* got an iterable dataset/,
  ],
  [
    'batches',
    { train: () => ({ async *[Symbol.asyncIterator]() {} }) as never, maxSteps: 1 },
    /got batches/,
  ],
])('%s is refused', async (_, options, message) => {
  expect((await refusal(() => trainWindows(options))).message).toMatch(message);
});

// A run that its caller leaves: training goes on from there as if it had not been left.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Trainer, TrainerOptions } from '../../lib/index.js';
import {
  destroyTrainers,
  samples,
  tinyModel,
  tinyTrainer,
  type Window,
  weightsOf,
} from './tiny.js';

let dir: string;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'ds-trainer-'));
});
afterEach(async () => {
  await destroyTrainers();
  rmSync(dir, { recursive: true, force: true });
});

type Options = Partial<TrainerOptions<Window>>;

const trainer = (options: Options): Trainer<Window> =>
  tinyTrainer({ model: tinyModel(0.1), epochs: 2, ...options });

/** Metrics that evaluations give one after the other. */
function scriptScores(values: readonly number[]) {
  let turn = 0;
  return () => ({
    score: { sum: values[Math.min(turn++, values.length - 1)] as number, count: 1 },
  });
}

/** Evaluated once per evaluation: one batch. */
const judged = samples(2, 70);

/** Micro-batches of an update, and the event at which training is left. */
const LEFT = [1, 2].flatMap((accumulation) =>
  ['begin', 'evaluate', 'alert', 'log 2', 'step 2', 'save', 'evaluate 5', 'epoch', 'step 9'].map(
    (at) => [accumulation, at] as const,
  ),
);

test.each(LEFT)(
  'accumulation %i, left at %s: training continues without a difference',
  async (size, at) => {
    const options = (folder: string): Options => ({
      accumulation: size,
      batchSize: 2 / size,
      precision: 'fp16',
      deepspeed: { fp16: { initial_scale_power: 24 } },
      eval: { data: judged, every: 'epoch', atStart: true, metrics: scriptScores([1, 9, 3, 2]) },
      save: { dir: join(dir, folder), every: 3, best: 'score', weights: false },
    });
    const [whole, left] = [trainer(options('whole')), trainer(options('left'))];
    const heard = [whole, left].map((trainer) => {
      const events: string[] = [];
      trainer.on('any', ({ type, step }) => void events.push(`${type} ${step}`));
      return events;
    }) as [string[], string[]];
    await whole.train();
    let isLeft = false;
    for await (const { type, step } of left.train()) {
      isLeft = at === type || at === `${type} ${step}`;
      if (isLeft) break;
    }
    expect(isLeft).toBe(true);
    await left.train();
    const others = (events: string[]): string[] =>
      events.filter((event) => !event.startsWith('begin'));
    expect(others(heard[1])).toEqual(others(heard[0]));
    const [a, b] = [await whole.engine(), await left.engine()];
    expect(weightsOf(b.module)).toEqual(weightsOf(a.module));
    expect((await left.state()).history).toEqual((await whole.state()).history);
  },
);

test('an abandoned run that resumes from its checkpoint reports no later update', async () => {
  const options: Options = { save: { dir, every: 3 } };
  const fullTrainer = trainer({});
  await fullTrainer.train();
  const one = trainer(options);
  for await (const { type, step } of one.train()) if (type === 'step' && step === 5) break;
  await one.train({ resume: true });
  expect((await one.state()).history).toEqual((await fullTrainer.state()).history);
});

test('one run at a time, each iterated once; leaving it keeps the position', async () => {
  const one = trainer({ model: tinyModel() });
  const run = one.train();
  for await (const { type, step } of run) {
    if (type !== 'step' || step < 3) continue;
    await expect(one.train()).rejects.toThrow('one run at a time');
    break;
  }
  expect(() => run[Symbol.asyncIterator]()).toThrow('one iteration of each run');
  expect((await one.state()).step).toBe(3);
  const fullModel = tinyModel();
  await trainer({ model: fullModel }).train();
  expect(await one.train()).toMatchObject({ step: 10, reason: 'done' });
  expect(weightsOf((await one.engine()).module)).toEqual(weightsOf(fullModel));
  await one.destroy();
  await expect(one.evaluate(samples(1))).rejects.toThrow('a call before destroy()');
});

// Tests that Trainers on two ranks have the numbers of one rank, and make equal decisions.
import assert from 'node:assert/strict';
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { MeshOptions } from '../../lib/comm/index.js';
import { data, nn } from '../../lib/index.js';
import type { Device } from '../../lib/runtime/device.js';
import type { JsonObject } from '../../types/json.js';
import { reportsOf, runRanks } from '../comm/ranks.js';
import type { Case } from '../support/case.js';
import type { RanksReport, RanksRun, TrainerJob } from './ranks-process.js';
import { samples, weightsOf } from './tiny.js';

async function runOn(
  device: Device,
  ranks: number,
  runs: RanksRun[],
  mesh?: MeshOptions,
): Promise<RanksReport[][]> {
  const job: TrainerJob = { device: device.kind, runs, mesh };
  return reportsOf<RanksReport[]>(await runRanks('../trainer/ranks-process', ranks, { job }));
}

type Run = Omit<RanksRun, 'options'> & { options?: RanksRun['options'] };

/**
 * Asserts that all ranks have the same events, metrics and predictions; returns the report of the
 * first rank.
 */
function alike(reports: readonly RanksReport[][], run: number): RanksReport {
  const [first, ...others] = reports.map((of) => of[run] as RanksReport);
  for (const { weights: _, ...other } of others)
    assert.deepEqual({ ...other, weights: first?.weights }, first);
  return first as RanksReport;
}

function assertClose(
  got: Partial<RanksReport>,
  expected: Partial<RanksReport>,
  tolerance: number,
  place: string,
): void {
  for (const [name, values] of Object.entries(expected.weights ?? {})) {
    values.forEach((value, i) => {
      const off = Math.abs((got.weights?.[name]?.[i] as number) - value);
      assert.ok(off <= tolerance, `${place}: ${name}[${i}] is off by ${off}`);
    });
  }
  for (const [name, value] of Object.entries(expected.metrics ?? {})) {
    const off = Math.abs((got.metrics?.[name] as number) - value);
    assert.ok(off <= tolerance, `${place}: ${name} is off by ${off}`);
  }
  assert.deepEqual(got.predictions, expected.predictions, place);
}

/**
 * Counts of targets differ by sample, from zero to nearly all. Nine samples are evaluated: one more
 * on a rank.
 */
async function countsLikeOne(device: Device, more: JsonObject = {}): Promise<void> {
  const run = (batchSize: number, stage: 0 | 2 | 3, accumulation: number): RanksRun => ({
    train: 24,
    judged: 9,
    dropout: 0.1,
    options: {
      batchSize,
      accumulation,
      epochs: 1,
      maxGradNorm: 0.1,
      lr: 1e-3,
      // Noise depends on the sample, not on the rank.
      ...(accumulation === 3 && { neftuneNoiseAlpha: 3 }),
      deepspeed: { zero_optimization: { stage }, ...more },
    },
  });
  const kinds = [
    [0, 1],
    [2, 3],
    [3, 2],
  ] as const;
  const [one] = await runOn(
    device,
    1,
    kinds.map(([, accumulation]) => run(4, 0, accumulation)),
  );
  const two = await runOn(
    device,
    2,
    kinds.map(([stage, accumulation]) => run(2, stage, accumulation)),
  );
  kinds.forEach(([stage], i) => {
    const tolerance = device.kind === 'cpu' ? 1e-6 : 1e-5;
    const [pair, single] = [alike(two, i), one?.[i] as RanksReport];
    assertClose(pair, single, tolerance, `stage ${stage}`);
    assert.deepEqual(tokensOf(pair), tokensOf(single), `stage ${stage}: tokens`);
  });
}

/** Token counts of each log. */
const tokensOf = ({ events }: RanksReport): (string | undefined)[] =>
  events.filter((event) => event.startsWith('log')).map((event) => event.split(' ').at(-1));

/** Samples of `difficulty[i]` tokens until update `max_step[i]`. */
const curriculum = (difficulty: number[], max_step: number[]): JsonObject => ({
  curriculum_learning: {
    enabled: true,
    min_difficulty: difficulty[0] as number,
    max_difficulty: difficulty.at(-1) as number,
    schedule_type: 'fixed_discrete',
    schedule_config: { difficulty, max_step },
  },
});
const CURRICULUM = curriculum([3, 6, 9], [1, 4]);

/** Ranks that share the model, or are replicas, evaluate each sample once. */
async function judgedOnce(device: Device, more: JsonObject = {}): Promise<void> {
  const run = (deepspeed: JsonObject): RanksRun => ({
    train: 8,
    judged: 5,
    tokens: 8,
    options: {
      batchSize: 2,
      epochs: 1,
      lr: 1e-3,
      neftuneNoiseAlpha: 3,
      deepspeed: { ...deepspeed, ...more },
    },
  });
  const [one] = await runOn(device, 1, [run({})]);
  const cuts = [
    [{ tp: 2 }, { tensor_parallel: { autotp_size: 2 } }],
    [{ sp: 2 }, { sequence_parallel_size: 2 }],
    [{ pp: 2 }, {}],
  ] as const;
  for (const [mesh, deepspeed] of cuts) {
    const two = alike(await runOn(device, 2, [run(deepspeed)], mesh), 0);
    // Each rank has its part of the weights.
    assertClose(
      { ...two, weights: null },
      { ...(one?.[0] as RanksReport), weights: null },
      1e-5,
      JSON.stringify(mesh),
    );
  }
}

/** Runs `body` with a section that samples the 24 samples by a metric from 1 to 4. */
async function withSamples(body: (more: JsonObject) => Promise<void>): Promise<void> {
  await inFolder(async (folder) => {
    const metrics = { ease: (_: unknown, i: number) => 1 + (i % 4) };
    const { ease } = await data.analyze(samples(24), { metrics, folder });
    const metric = {
      index_to_sample_path: ease.indexToSamplePath,
      index_to_metric_path: ease.indexToMetricPath,
      min_difficulty: 1,
      max_difficulty: 4,
      schedule_type: 'fixed_discrete',
      schedule_config: { difficulty: [1, 3, 4], max_step: [1, 3] },
    };
    const curriculum_learning = { enabled: true, curriculum_metrics: { ease: metric } };
    const data_sampling = { enabled: true, curriculum_learning };
    await body({ data_efficiency: { enabled: true, data_sampling } });
  });
}

async function inFolder(body: (dir: string) => Promise<void>): Promise<void> {
  const dir = mkdtempSync(join(tmpdir(), 'ds-trainer-ranks-'));
  try {
    await body(dir);
  } finally {
    rmSync(dir, { recursive: true, force: true });
  }
}

/** A single rank would choose another best evaluation, or train on. */
async function decidedAlike(device: Device): Promise<void> {
  await inFolder(async (dir) => {
    const run: Run = {
      train: 16,
      judged: 2,
      // Means are 1, 3, 2, 2.5. By its own scores, rank 1 would stop after two, and rank 0 never.
      scores: [
        [0, 2],
        [5, 1],
        [4, 0],
        [5, 0],
        [9, 9],
      ],
      options: {
        batchSize: 2,
        epochs: 4,
        earlyStop: { patience: 2 },
        save: { dir, every: 1, keep: 2, best: 'score' },
      },
    };
    const { events } = alike(await runOn(device, 2, [run as RanksRun]), 0);
    assert.deepEqual(
      events.filter((event) => /^(save|end)/.test(event)),
      ['save 1', 'save 2', 'save 3', 'save 4', 'end 4 early 2'],
    );
    const kept = readdirSync(dir)
      .filter((name) => name.startsWith('checkpoint'))
      .sort();
    assert.equal(kept.join(), 'checkpoint-2,checkpoint-4');
  });
}

/** A save of weights only, from two ranks with parts of them, equals that of one rank. */
async function savedTogether(device: Device): Promise<void> {
  await inFolder(async (dir) => {
    const run = (name: string, deepspeed: JsonObject): RanksRun => ({
      train: 8,
      options: {
        batchSize: 2,
        maxSteps: 1,
        lr: 1e-3,
        deepspeed,
        save: { dir: join(dir, name), every: 1, weightsOnly: true },
      },
    });
    const kinds = [
      [{ tp: 2 }, { tensor_parallel: { autotp_size: 2 } }],
      [{ pp: 2 }, {}],
    ] as const;
    await runOn(device, 1, [run('alone', {})]);
    const savedWeights = async (name: string) =>
      weightsOf(await nn.models.fromPretrained(join(dir, name, 'checkpoint-1')));
    const alone = await savedWeights('alone');
    for (const [mesh, deepspeed] of kinds) {
      const name = Object.keys(mesh).join();
      await runOn(device, 2, [run(name, deepspeed)], mesh);
      assertClose({ weights: await savedWeights(name) }, { weights: alone }, 1e-5, name);
    }
    const zero = run('zero', { zero_optimization: { stage: 3 } });
    const { weights } = alike(await runOn(device, 2, [zero]), 0);
    assert.deepEqual(await savedWeights('zero'), weights);
  });
}

/** Only the last rank gets a signal, at a random step. */
async function stoppedAlike(device: Device, more: JsonObject = {}): Promise<void> {
  await inFolder(async (dir) => {
    const step = 2 + (process.pid % 5);
    const options = (name: string): RanksRun['options'] => ({
      batchSize: 2,
      epochs: 2,
      save: { dir: join(dir, name), every: 1000 },
      deepspeed: { zero_optimization: { stage: 3 }, ...more },
    });
    const run: Run = { train: 24, dropout: 0.1 };
    const fullRanksRun = { ...run, options: options('whole') } as RanksRun;
    const signalled = {
      ...run,
      options: options('signal'),
      stop: { step, by: 'SIGTERM' },
    } as RanksRun;
    const aborted = { ...run, options: options('abort'), stop: { step, by: 'abort' } } as RanksRun;
    const first = await runOn(device, 2, [fullRanksRun, aborted, signalled]);
    const [unbroken, ...stopped] = [0, 1, 2].map((i) => alike(first, i)) as [
      RanksReport,
      ...RanksReport[],
    ];
    for (const { events } of stopped) {
      const end = Number(/^end (\d+) stopped/.exec(events.at(-1) as string)?.[1]);
      assert.ok(end > step && end <= step + 2, `${events.at(-1)}, asked to stop at ${step}`);
    }
    const resumed = [aborted, signalled].map(({ stop: _, ...one }) => ({ ...one, resume: true }));
    const second = await runOn(device, 2, resumed);
    resumed.forEach((_, i) => {
      const { weights, events } = alike(second, i);
      assert.deepEqual(weights, unbroken.weights);
      const reported = [...(stopped[i] as RanksReport).events, ...events];
      const logsOf = (all: string[]): string[] => all.filter((event) => event.startsWith('log'));
      assert.deepEqual(logsOf(reported), logsOf(unbroken.events));
    });
  });
}

/** The program reads the stop state only after the first update. */
async function stoppedAtOnce(device: Device): Promise<void> {
  const options = { batchSize: 2, epochs: 2 };
  const run: Run = { train: 24, options, stop: { step: 1, by: 'SIGTERM' } };
  const { events } = alike(await runOn(device, 1, [run as RanksRun]), 0);
  assert.equal(events.at(-1), 'end 1 stopped null');
}

export const cases: Case[] = [
  { name: 'a signal in the first update stops the run at its end', run: stoppedAtOnce },
  {
    name: 'two ranks of uneven counts have the weights and metrics of one',
    run: (device) => countsLikeOne(device),
    gpus: 2,
  },
  {
    name: 'two ranks with growing sample lengths have the weights, tokens and metrics of one',
    run: (device) => countsLikeOne(device, CURRICULUM),
    gpus: 2,
  },
  { name: 'two ranks of one model judge each sample once', run: judgedOnce, gpus: 2 },
  {
    name: 'two ranks of one model with growing sample lengths have the metrics of one',
    run: (device) => judgedOnce(device, curriculum([2, 4, 8], [1, 2])),
    gpus: 2,
  },
  {
    name: 'two ranks find the same best checkpoint and stop early together',
    run: decidedAlike,
    gpus: 2,
  },
  { name: 'two ranks save weights only, as one does', run: savedTogether, gpus: 2 },
  {
    name: 'two ranks stop together after a request to one, and resume bit for bit',
    run: (device) => stoppedAlike(device),
    gpus: 2,
  },
  {
    name: 'two ranks go on to the bit in the middle of a curriculum',
    run: (device) => stoppedAlike(device, CURRICULUM),
    gpus: 2,
  },
  {
    name: 'two ranks draw by difficulty what one draws',
    run: (device) => withSamples((more) => countsLikeOne(device, more)),
    gpus: 2,
  },
  {
    name: 'two ranks that draw by difficulty go on to the bit',
    run: (device) => withSamples((more) => stoppedAlike(device, more)),
    gpus: 2,
  },
];

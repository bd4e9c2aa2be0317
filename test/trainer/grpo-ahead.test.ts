// grpo() with maxStaleness: generations are sampled before the updates that precede theirs.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import {
  type GrpoOptions,
  grpo,
  type Reward,
  rloo,
  Trainer,
  type TrainerEvent,
  type TrainerOptions,
} from '../../lib/index.js';
import { refusal } from '../support/refusal.js';
import { even, events, logsOf, policyModel, promptRows, prompts, tokenizer } from './grpo-tiny.js';
import { weightsOf } from './tiny.js';

const sampling = { maxNewTokens: 6 };

/** A method that records the updates before each call of its reward. */
function recordRun(options: Partial<GrpoOptions>) {
  const steps: number[] = [];
  const judge: Reward = (input) => {
    steps.push(input.step);
    return even(input);
  };
  const rewards = { of: judge, name: 'even' };
  return { steps, method: grpo({ rewards, generations: 4, sampling, ...options }) };
}

const staleness = (all: readonly TrainerEvent[]) =>
  logsOf(all).map(({ metrics }) => metrics['sample/staleness_mean']);

test.each([
  ['the weights of one update before', { maxStaleness: 1 }, 1, [0, 0, 1, 2, 3], [0, 1, 1, 1, 1]],
  ['those of three updates before', { maxStaleness: 3 }, 1, [0, 0, 0, 0, 1], [0, 1, 2, 3, 3]],
  [
    'those of one update, for two updates',
    { maxStaleness: 1, stepsPerGeneration: 2 },
    1,
    [0, 1, 3],
    [0, undefined, 1, undefined, 1],
  ],
  [
    'those of one update, two for each update',
    { maxStaleness: 1, stepsPerGeneration: 1 },
    2,
    [0, 0, 0, 0, 1, 1, 2, 2, 3, 3],
    [0, 1, 1, 1, 1],
  ],
])('generations are sampled with %s', async (_, options, accumulation, expected, stale) => {
  const { steps, method } = recordRun(options);
  const all = await events({ method, maxSteps: 5, accumulation, lr: 1e-2 });
  expect(steps).toEqual(expected);
  expect(staleness(all)).toEqual(stale);
});

test('rewards are computed during the update before', async () => {
  let updates = 0;
  let resolveReached = (): void => {};
  const first = new Promise<void>((resolve) => {
    resolveReached = resolve;
  });
  // The second generation is judged after the first update: without the option, it never ends.
  const judge: Reward = async (input) => {
    if (updates++ > 0) await first;
    return even(input);
  };
  const method = grpo({
    rewards: { of: judge, name: 'even' },
    generations: 4,
    sampling,
    maxStaleness: 1,
  });
  const trainer = new Trainer({
    model: policyModel(),
    tokenizer,
    train: await prompts(),
    lr: 1e-2,
    batchSize: 8,
    method,
    maxSteps: 3,
    device: 'cpu',
    seed: 1,
    progress: false,
    stopSignals: [],
  } as TrainerOptions);
  for await (const event of trainer.train()) if (event.type === 'step') resolveReached();
  await trainer.destroy();
  expect(updates).toBe(3);
});

test('samples use the same weights, and the ratio is against the sampler', async () => {
  const run = async (maxStaleness: number, lr: number) => {
    const all = await events({ method: recordRun({ maxStaleness }).method, maxSteps: 8, lr });
    const texts = all.flatMap((event) => (event.type === 'rollout' ? [event.samples] : []));
    return { texts, metrics: logsOf(all).map(({ metrics }) => metrics) };
  };
  // 24 prompts: an epoch has 12 updates of 2 prompts. Weights that stand still sample the same.
  const still = await run(0, 1e-12);
  expect((await run(2, 1e-12)).texts).toEqual(still.texts);
  const { metrics } = await run(2, 1e-2);
  expect(metrics.map((metric) => metric['sampling/sampling_logp_difference/max'])).toEqual(
    metrics.map(() => 0),
  );
  expect(metrics[0]?.['policy/logp_difference/max']).toBeLessThan(1e-5);
  for (const one of metrics.slice(1))
    expect(one['policy/logp_difference/max']).toBeGreaterThan(1e-3);
});

test('with a correction, the ratio is against the weights before the update', async () => {
  const { method } = recordRun({ maxStaleness: 1, correction: 'token_truncate' });
  const all = logsOf(await events({ method, maxSteps: 3, lr: 1e-2 }));
  for (const { metrics } of all) expect(metrics['policy/logp_difference/max']).toBe(0);
  const distances = all.map(({ metrics }) => metrics['sampling/sampling_logp_difference/max']);
  expect(distances[0]).toBeLessThan(1e-5);
  expect(distances[1]).toBeGreaterThan(1e-3);
});

test('rloo() samples ahead too', async () => {
  const rewards = { of: even, name: 'even' };
  const method = rloo({
    rewards,
    generations: 4,
    sampling,
    beta: 0.1,
    maxStaleness: 1,
    reference: policyModel(),
  });
  const all = logsOf(await events({ method, maxSteps: 3, lr: 1e-2 }));
  expect(all.map(({ loss }) => Number.isFinite(loss))).toEqual([true, true, true]);
  expect(staleness(all)).toEqual([0, 1, 1]);
});

test('an error of a reward ends training with its row', async () => {
  const judge: Reward = async (input) => {
    if (input.step === 1) throw new Error('no judge');
    return even(input);
  };
  const rewards = { of: judge, name: 'even' };
  const method = grpo({ rewards, generations: 4, sampling, maxStaleness: 1 });
  const error = await refusal(() => events({ method, maxSteps: 4 }));
  expect(error.message).toMatch(/reward even of row \d+: expected a reward, got the error/);
});

test('destroy() does not wait for rewards', async () => {
  let calls = 0;
  const judge: Reward = (input) => (calls++ > 0 ? new Promise(() => {}) : even(input));
  const rewards = { of: judge, name: 'even' };
  const method = grpo({ rewards, generations: 4, sampling, maxStaleness: 1 });
  const trainer = new Trainer({
    model: policyModel(),
    tokenizer,
    train: await prompts(),
    lr: 1e-2,
    batchSize: 8,
    method,
    maxSteps: 3,
    device: 'cpu',
    seed: 1,
    progress: false,
    stopSignals: [],
  } as TrainerOptions);
  for await (const event of trainer.train()) if (event.type === 'step') break;
  await trainer.destroy();
  expect(calls).toBe(2);
});

describe('a run that stops', () => {
  let dir: string;
  beforeEach(() => {
    dir = mkdtempSync(join(tmpdir(), 'ds-ahead-'));
  });
  afterEach(() => rmSync(dir, { recursive: true }));

  async function run(options: Partial<GrpoOptions>, stopAt: number | null, resume = false) {
    const model = policyModel();
    const { method } = recordRun(options);
    const trainer = new Trainer({
      model,
      tokenizer,
      train: await prompts(promptRows.slice(0, 8)),
      lr: 1e-2,
      method,
      batchSize: 8,
      maxSteps: 9,
      device: 'cpu',
      seed: 1,
      progress: false,
      stopSignals: [],
      schedule: 'constant',
      log: { every: 1 },
      ...((stopAt !== null || resume) && { save: { dir, every: 100 } }),
    } as TrainerOptions);
    const abort = new AbortController();
    const all: TrainerEvent[] = [];
    for await (const event of trainer.train({ signal: abort.signal, resume })) {
      all.push(event);
      if (event.type === 'step' && event.step === stopAt) abort.abort();
    }
    await trainer.destroy();
    const logs = logsOf(all).map(({ step, loss, metrics }) => [step, loss, metrics]);
    return { logs, weights: weightsOf(model) };
  }

  // An epoch has 4 updates, so the run stops within an epoch and at its end.
  test.each([
    [2, { maxStaleness: 2 }],
    [4, { maxStaleness: 2 }],
    [3, { maxStaleness: 1, stepsPerGeneration: 2, iterations: 2 }],
    [4, {}],
  ])('resumes to equal results: after update %d with %j', async (stopAt, options) => {
    const fullResult = await run(options, null);
    const first = await run(options, stopAt);
    const rest = await run(options, null, true);
    expect(first.logs.length).toBeLessThan(9);
    expect([...first.logs, ...rest.logs]).toEqual(fullResult.logs);
    expect(rest.weights).toEqual(fullResult.weights);
  });
});

// grpo() and rloo(): what a small model learns, metrics, references and reuse of rollouts.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { grpo, peft, rloo, type TrainerOptions, text } from '../../lib/index.js';
import { refusal } from '../support/refusal.js';
import { even, events, logsOf, policyModel, promptRows, prompts, tokenizer } from './grpo-tiny.js';

const sampling = { maxNewTokens: 6, temperature: 1 };
const method = grpo({ rewards: even, generations: 4, sampling });

const rewardsIn = async (options: Partial<TrainerOptions>): Promise<number[]> =>
  logsOf(await events(options)).map(({ metrics }) => metrics.reward as number);

test.each([
  ['grpo', grpo({ rewards: even, generations: 8, sampling })],
  ['rloo', rloo({ rewards: even, generations: 8, sampling, beta: 0 })],
])('a small model learns a reward by %s', async (_, method) => {
  const rewards = await rewardsIn({ method, maxSteps: 28, batchSize: 32, lr: 1e-2 });
  expect(rewards[0]).toBeLessThan(0.65);
  expect(rewards.at(-1)).toBeGreaterThan(0.85);
});

test("logs have TRL's names, and events have samples with rewards", async () => {
  const all = await events({ method, maxSteps: 2 });
  const [first] = logsOf(all);
  expect(first?.metrics).toMatchObject({
    'completions/max_length': 6,
    'clip_ratio/region_mean': 0,
    'policy/logp_difference/max': 0,
  });
  expect(Object.keys(first?.metrics ?? {})).toEqual(
    expect.arrayContaining([
      'reward',
      'reward_std',
      'frac_reward_zero_std',
      'rewards/even/mean',
      'entropy',
      'completions/mean_terminated_length',
      'sampling/sampling_logp_difference/max',
    ]),
  );
  expect(first?.metrics['sampling/sampling_logp_difference/max']).toBeLessThan(1e-5);
  const rollout = all.find((event) => event.type === 'rollout');
  expect(rollout?.samples.length).toBe(8);
  const mean =
    (rollout?.samples ?? []).reduce(
      (sum, rolloutSample) => sum + (rolloutSample.rewards.even ?? 0),
      0,
    ) / 8;
  expect(rollout?.reward).toBeCloseTo(mean, 10);
  expect(rollout?.samples[0]?.prompt).toMatch(/^The /);
});

test('the ratio is 1 in the first update of a generation, and moves in later ones', async () => {
  const reused = grpo({ rewards: even, generations: 4, sampling, iterations: 3 });
  const all = await events({ method: reused, maxSteps: 6, lr: 1e-2 });
  const drift = logsOf(all).map(({ metrics }) => metrics['policy/logp_difference/max'] as number);
  expect([drift[0], drift[3]]).toEqual([0, 0]);
  for (const i of [1, 2, 4, 5]) expect(drift[i]).toBeGreaterThan(1e-3);
  expect(all.filter(({ type }) => type === 'rollout').length).toBe(2);
  const rewards = logsOf(all).map(({ metrics }) => 'reward' in metrics);
  expect(rewards).toEqual([true, false, false, true, false, false]);
});

test('adapters learn beside the model, which is the reference', async () => {
  const makeAdapted = () => peft.addLora(policyModel(), { r: 4 });
  const options = { rewards: even, generations: 4, sampling, beta: 0.1 };
  const localItems = await events({ model: makeAdapted(), method: grpo(options), lr: 1e-2 });
  const second = await events({
    model: makeAdapted(),
    method: grpo({ ...options, reference: policyModel() }),
    lr: 1e-2,
  });
  const of = (all: typeof localItems) => logsOf(all).map(({ loss, metrics }) => [loss, metrics.kl]);
  expect(of(second)).toEqual(of(localItems));
  const [first, ...rest] = of(localItems).map(([, kl]) => kl as number);
  expect(first).toBeCloseTo(0, 6);
  expect(rest.at(-1)).toBeGreaterThan(1e-5);
});

test('evaluations sample held-out prompts, and find the best checkpoint', async () => {
  const dir = mkdtempSync(join(tmpdir(), 'ds-best-'));
  const two = grpo({ rewards: even, generations: 4, sampling, evalGenerations: 2 });
  const held = await prompts(promptRows.slice(0, 5));
  const all = await events({
    method: two,
    maxSteps: 2,
    eval: { data: held, every: 1 },
    save: { dir, every: 'best', best: 'reward' },
  }).finally(() => rmSync(dir, { recursive: true }));
  const found = all.filter((event) => event.type === 'evaluate');
  expect(found.length).toBe(2);
  for (const { metrics } of found) {
    expect(metrics.loss).toBe(-(metrics.reward as number));
    expect(metrics).toHaveProperty(['completions/mean_length'], 6);
  }
  expect(all.at(-1)).toMatchObject({ type: 'end', best: { metric: expect.any(Number) } });
});

test('completions at a temperature are scored at it', async () => {
  const hot = grpo({ rewards: even, generations: 4, sampling: { ...sampling, temperature: 0.7 } });
  const [first] = logsOf(await events({ method: hot, maxSteps: 1 }));
  expect(first?.metrics['sampling/sampling_logp_difference/max']).toBeLessThan(1e-5);
});

test('truncated completions may be left out', async () => {
  const masked = grpo({ rewards: even, generations: 4, sampling, maskTruncated: true });
  const [first] = logsOf(await events({ method: masked, maxSteps: 1 }));
  expect(first?.metrics['completions/clipped_ratio']).toBeGreaterThan(0.8);
});

test('the same seed gives the same run', async () => {
  const losses = async () =>
    logsOf(await events({ method, maxSteps: 3 })).map(({ loss, metrics }) => [loss, metrics]);
  expect(await losses()).toEqual(await losses());
});

test.each([
  [() => grpo({ rewards: even, generations: 1 }), /grpo generations.*2/],
  [() => grpo({ rewards: [] }), /grpo rewards.*at least one/],
  [() => grpo({} as { rewards: typeof even }), /grpo rewards/],
  [() => grpo({ rewards: even, sampling: { temperature: 0 } }), /temperature.*above 0/],
  [() => grpo({ rewards: [even, even] }), /different names/],
  [() => grpo({ rewards: even, loss: 'ppo' as 'dapo' }), /grpo loss/],
])('wrong options are refused: %#', (make, message) => {
  expect(make).toThrow(message);
});

test.each([
  [
    { method: grpo({ rewards: even, generations: 3, sampling }) },
    /generations.*a divisor of the 8/,
  ],
  [
    { method: grpo({ rewards: even, generations: 4, sampling, beta: 0.1 }) },
    /a reference.*beta: 0/,
  ],
  [
    { method: grpo({ rewards: even, generations: 4, sampling: { maxNewTokens: 64 } }) },
    /at most \d+ with the prompt of row \d+: the model takes 64/,
  ],
])('wrong combinations are refused: %#', async (options, message) => {
  const error = await refusal(() => events(options));
  expect(error.message).toMatch(message);
});

test('only prompts are rolled out', async () => {
  const rows = [{ prompt: 'a', chosen: 'b', rejected: 'c' }];
  const pairs = await text.PairDataset.open({ tokenizer, rows });
  const error = await refusal(() => events({ method, train: pairs as never }));
  expect(error.message).toMatch(/Trainer train: expected a text.PromptDataset for grpo\(\)/);
  expect((await prompts()).report).toEqual({
    prompts: 24,
    dropped: 0,
    longest: expect.any(Number),
  });
});

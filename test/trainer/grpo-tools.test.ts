// Tools in rollouts: results are tokens of the completion that the loss leaves out.
import { cpu, grpo, type RolloutTool, type ToolInput } from '../../lib/index.js';
import { batchOf, type Rollout } from '../../lib/trainer/rollouts/rollout-batch.js';
import { errorOf } from '../engine/offload-scenario.js';
import { even, events, logsOf } from './grpo-tiny.js';

/** Half of all tokens end a turn. */
const stopTokens = Array.from({ length: 500 }, (_, i) => 2 * i);
const sampling = { maxNewTokens: 10, stopTokens };
const methodOf = (tool: RolloutTool | { of: RolloutTool; timeout: number }, more: object = {}) =>
  grpo({ rewards: even, generations: 4, sampling, tool, ...more });

test('completions continue after results, up to toolTurns calls', async () => {
  const inputs: ToolInput[] = [];
  const tool: RolloutTool = async (input) => {
    inputs.push(input);
    return ' a rank';
  };
  const all = await events({ method: methodOf(tool, { toolTurns: 2 }), maxSteps: 2 });
  expect(inputs.length).toBeGreaterThan(4);
  expect(inputs.map(({ turn }) => turn).every((turn) => turn < 2)).toBe(true);
  const second = inputs.find(({ turn }) => turn === 1) as ToolInput;
  expect(second.whole).toContain(' a rank');
  expect(second.whole.endsWith(second.content)).toBe(true);
  expect(second.columns.wanted).toEqual(expect.any(String));
  const [log] = logsOf(all);
  const metrics = log?.type === 'log' ? log.metrics : {};
  expect(metrics['tools/call_frequency']).toBeGreaterThan(0);
  expect(metrics['policy/logp_difference/max']).toBe(0);
  expect(metrics['sampling/sampling_logp_difference/max']).toBeLessThan(1e-4);
  expect(metrics['completions/max_length']).toBeLessThanOrEqual(10);
  const rollout = all.find(({ type }) => type === 'rollout');
  const texts =
    rollout?.type === 'rollout' ? rollout.samples.map((sample) => sample.completion) : [];
  expect(texts.some((text) => text.includes(' a rank'))).toBe(true);
});

test('a tool that ends each completion samples what runs without one sample once', async () => {
  const all = await events({ method: methodOf(() => null), maxSteps: 1 });
  const [log] = logsOf(all);
  expect(log?.type === 'log' && log.metrics['tools/call_frequency']).toBe(0);
});

test('a result without room is dropped', async () => {
  const long = Array.from({ length: 20 }, () => ' rank').join('');
  const all = await events({ method: methodOf(() => long), maxSteps: 1 });
  const rollout = all.find(({ type }) => type === 'rollout');
  const texts =
    rollout?.type === 'rollout' ? rollout.samples.map((sample) => sample.completion) : [];
  expect(texts.some((text) => text.includes(long))).toBe(false);
});

test('the loss leaves results out', () => {
  const rollout: Rollout = {
    prompt: [1, 2],
    tokens: [3, 4, 5],
    sampler: [-1, 0, -2],
    mask: [1, 0, 1],
    old: null,
    reference: null,
    advantage: 1,
    counts: true,
  };
  const batch = batchOf([rollout], 0, cpu());
  expect(batch.ids.toArray()).toEqual([1, 2, 3, 4, 5]);
  expect(batch.targets.toArray()).toEqual([-100, 3, -100, 5, -100]);
  expect(batch.mask.toArray()).toEqual([0, 1, 0, 1, 0]);
  expect(batch.counted).toBe(2);
});

test('failures name the row, and wrong options are refused', async () => {
  const fail = (tool: Parameters<typeof methodOf>[0]) =>
    errorOf(() => events({ method: methodOf(tool), maxSteps: 1 }));
  expect(
    await fail(() => {
      throw new Error('no network');
    }),
  ).toMatch(/^DS_DATA.*tool of row \d+: expected a string, or null, got the error "no network"/);
  expect(await fail(() => 5 as never)).toMatch(
    /tool of row \d+: expected a string, or null, got 5/,
  );
  expect(await fail({ of: () => new Promise(() => {}), timeout: 0.05 })).toMatch(
    /tool of row \d+: expected a result within 0\.05 s/,
  );
  expect(() => methodOf(3 as never)).toThrow(/grpo tool: expected a function/);
  expect(() => methodOf(() => null, { toolTurns: 0 })).toThrow(/toolTurns/);
});

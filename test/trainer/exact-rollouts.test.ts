// exactRollouts: the recorded log-probabilities serve as those of the first update, bit for bit.
import { grpo, initialize, peft, rloo, rolloutsOf, type TrainerOptions } from '../../lib/index.js';
import { refusal } from '../support/refusal.js';
import { even, events, logsOf, policyModel } from './grpo-tiny.js';

const sampling = { maxNewTokens: 6, temperature: 0.7 };
const exact = { rewards: even, generations: 4, sampling, exactRollouts: true };

/** Largest distances from the sampler and from the log-probabilities at sampling, by update. */
async function distances(options: Partial<TrainerOptions>): Promise<number[][]> {
  const logs = logsOf(await events(options));
  return logs.map(({ metrics }) =>
    ['sampling/sampling_logp_difference/max', 'policy/logp_difference/max'].map(
      (name) => metrics[name] as number,
    ),
  );
}

test.each([
  ['grpo in f32', grpo(exact), {}],
  ['grpo in bf16', grpo(exact), { precision: 'bf16' }],
  ['rloo', rloo({ ...exact, beta: 0 }), {}],
] as const)('the ratio is exactly 1 in each first update: %s', async (_name, method, options) => {
  const found = await distances({ method, maxSteps: 3, lr: 1e-2, ...options });
  expect(found).toEqual([
    [0, 0],
    [0, 0],
    [0, 0],
  ]);
});

test('64 completions in micro-batches of 8, with adapters and checkpointed blocks', async () => {
  const model = peft.addLora(policyModel(3, { activationCheckpointing: true }), { r: 4 });
  const found = await distances({ model, method: grpo(exact), maxSteps: 2, accumulation: 8 });
  expect(found).toEqual([
    [0, 0],
    [0, 0],
  ]);
});

test('later updates of a generation compare with the recorded log-probabilities', async () => {
  const reused = grpo({ ...exact, iterations: 2 });
  const all = await events({ method: reused, maxSteps: 4, lr: 1e-2 });
  const [first, second, third] = logsOf(all).map(
    ({ metrics }) => metrics['policy/logp_difference/max'] as number,
  );
  expect([first, third]).toEqual([0, 0]);
  expect(second).toBeGreaterThan(1e-3);
});

test.each([
  [true, 4],
  [false, 6],
])('exactRollouts %s: %s forwards for four updates of two generations', async (exactly, count) => {
  const model = policyModel();
  let forwards = 0;
  model.registerForwardHook(() => {
    forwards++;
  });
  const method = grpo({ ...exact, iterations: 2, exactRollouts: exactly });
  await events({ model, method, maxSteps: 4 });
  expect(forwards).toBe(count);
});

test('without the option, the sampler differs from training', async () => {
  const method = grpo({ ...exact, exactRollouts: false });
  const found = await distances({ method, maxSteps: 3, lr: 1e-2 });
  expect(Math.max(...found.map(([sampler]) => sampler as number))).toBeGreaterThan(0);
});

test.each([
  [
    { progressive_layer_drop: { enabled: true } },
    /exactRollouts: expected a configuration without progressive_layer/,
  ],
  [
    { bf16: { enabled: true }, fp8: { enabled: true } },
    /exactRollouts: expected a configuration without fp8/,
  ],
  [
    {
      compression_training: {
        weight_quantization: {
          shared_parameters: { enabled: true },
          different_groups: { all: { params: { start_bits: 8, target_bits: 8 }, modules: ['*'] } },
        },
      },
    },
    /exactRollouts: expected a configuration without compression_training/,
  ],
])('configurations whose forwards differ are refused: %#', async (section, message) => {
  const error = await refusal(() => events({ method: grpo(exact), deepspeed: section as never }));
  expect(error.message).toMatch(message);
});

test('dropout in training is refused by name', async () => {
  const model = peft.addLora(policyModel(), { r: 4, loraDropout: 0.1 });
  const error = await refusal(() => events({ model, method: grpo(exact) }));
  expect(error.message).toMatch(/dropout in batch-invariant mode: expected p = 0, got p = 0.1/);
});

test('rolloutsOf() takes a boolean', async () => {
  const config = { train_batch_size: 1, optimizer: { type: 'AdamW' as const } };
  const { engine } = await initialize({ model: policyModel(), config, device: 'cpu' });
  const wrong = await refusal(() => rolloutsOf(engine, { batchInvariant: 1 as never }));
  expect(wrong.message).toMatch(/rolloutsOf batchInvariant: expected/);
  await engine.destroy();
});

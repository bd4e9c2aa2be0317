// offloadStates() and reloadStates(): bits, freed memory, and calls that need offloaded states.
import { initialize, nn, type OffloadState, rolloutsOf, Tensor } from '../../lib/index.js';
import { reportsOf, runRanks } from '../comm/ranks.js';
import { refusal } from '../support/refusal.js';
import { policyModel } from '../trainer/grpo-tiny.js';
import {
  errorOf,
  type OffloadReport,
  type OffloadRun,
  trainOffloaded,
} from './offload-scenario.js';

const adam = { type: 'AdamW', params: { lr: 0.01 } };
const config = (stage: number, more: object = {}): object => ({
  train_micro_batch_size_per_gpu: 2,
  optimizer: adam,
  zero_optimization: { stage },
  ...more,
});
const pageable = { pinMemory: false };

const states: [string, object][] = [
  ...[0, 1, 2, 3].map((stage): [string, object] => [`fp32, stage ${stage}`, config(stage)]),
  ['bf16 with split masters', config(2, { bf16: { enabled: true } })],
  ['bf16, stage 3', config(3, { bf16: { enabled: true } })],
  ['fp16', config(1, { fp16: { enabled: true, initial_scale_power: 8 } })],
  [
    'bf16 with f32 gradients',
    config(1, { bf16: { enabled: true }, data_types: { grad_accum_dtype: 'fp32' } }),
  ],
];

describe.each(states)('%s', (_, settings) => {
  const run = (moves: OffloadRun['moves'], more: Partial<OffloadRun> = {}): OffloadRun => ({
    config: { ...settings, gradient_accumulation_steps: 2 },
    moves,
    options: pageable,
    ...more,
  });

  test('keeps all bits, and frees device memory', async () => {
    const { bits } = await trainOffloaded(run(null));
    const all = await trainOffloaded(run('between'));
    expect(all.bits).toBe(bits);
    all.moved.forEach((moved, i) => {
      const sum = Object.values(moved).reduce((a, b) => a + b, 0);
      expect(moved.optim_states).toBeGreaterThan(0);
      expect(moved.lp_params).toBeGreaterThan(0);
      // The pool rounds blocks up.
      expect(all.freed[i]).toBeGreaterThanOrEqual(sum);
      expect(all.taken[i]).toBeGreaterThanOrEqual(sum);
    });
    const micro = await trainOffloaded(run('micro'));
    expect(micro.bits).toBe(bits);
    const gradients = micro.moved.map(
      ({ lp_grads: a = 0, contiguous_grad_buffer: b = 0 }) => a + b,
    );
    expect(Math.min(...gradients)).toBeGreaterThan(0);
    const pinned = await trainOffloaded(
      run('between', { options: { pinMemory: true, nonBlocking: true } }),
    );
    expect([pinned.bits, pinned.moved]).toEqual([bits, all.moved]);
  });

  test('forward and backward run while the optimizer state is away', async () => {
    const include: OffloadState[] = ['optim_states', 'hp_params'];
    const { bits } = await trainOffloaded(run(null));
    const apart = await trainOffloaded(run('backward', { include }));
    expect(apart.bits).toBe(bits);
  });
});

test('errors of calls name the offloaded states that they need', async () => {
  const model = policyModel();
  const bf16 = config(1, { bf16: { enabled: true } }) as { train_batch_size: number };
  const { engine } = await initialize({ model, device: 'cpu', config: bf16 });
  const [ids, targets] = [1, 2].map((token) =>
    Tensor.from(new Int32Array(8).fill(token), { shape: [2, 4] }),
  );
  const pass = (): void => engine.backward(engine.forward<Tensor>(ids, targets));
  pass();
  expect(engine.offloadStates({ include: ['optim_states'] }).optim_states).toBeGreaterThan(0);
  expect(engine.offloadStates({ include: ['optim_states'] })).toEqual({ optim_states: 0 });
  expect(await errorOf(() => engine.step())).toBe(
    'DS_RELEASED engine.step: expected optim_states on the device, got offloaded states. Call engine.reloadStates() first.',
  );
  expect(await errorOf(() => engine.saveCheckpoint('unwritten'))).toMatch(
    /^DS_RELEASED .*optim_states on the device/,
  );
  engine.offloadStates({ include: ['lp_params'] });
  expect(await errorOf(() => engine.forward(ids, targets))).toMatch(
    /^DS_RELEASED engine.forward: expected lp_params on the device/,
  );
  expect(await errorOf(() => model.forward(ids as Tensor, null))).toMatch(/^DS_RELEASED/);
  engine.reloadStates();
  engine.reloadStates();
  engine.step();
  engine.offloadStates();
  const before = engine.device.memory.inUse;
  engine.destroy();
  // The model keeps its weights.
  expect(engine.device.memory.inUse).toBeLessThan(before);
  model.forward(ids as Tensor, null).dispose();
});

test('options are checked, and states outside the device are refused', async () => {
  const model = new nn.Linear(4, 4);
  const { engine } = await initialize({ model, device: 'cpu', config: config(0) as never });
  expect(engine.offloadStates({ device: 'none' })).toEqual({});
  expect(engine.offloadStates({ include: [], pin_memory: true } as never)).toEqual({});
  const calls = [
    { include: ['optim_state'] },
    { include: 'optim_states' },
    { include: ['lp_grads', 'lp_grads'] },
    { device: 'nvme' },
    { pinMemory: 1 },
  ];
  for (const call of calls) {
    expect((await refusal(() => engine.offloadStates(call as never))).code).toBe('DS_ARGUMENT');
  }
  engine.destroy();
  expect((await refusal(() => engine.offloadStates())).code).toBe('DS_AUTOGRAD');
  const offload = { stage: 2, offload_optimizer: { device: 'cpu' } };
  const { engine: away } = await initialize({
    model,
    device: 'cpu',
    config: config(2, { zero_optimization: offload }) as never,
  });
  expect(await errorOf(() => away.offloadStates())).toMatch(
    /^DS_CONFIG .*without zero_optimization.offload_optimizer, got device "cpu"/,
  );
  away.destroy();
});

test('rollouts move states away while they generate', async () => {
  const settings = config(1) as { train_batch_size: number };
  const { engine } = await initialize({ model: policyModel(), device: 'cpu', config: settings });
  const [ids, targets] = [1, 2].map((token) =>
    Tensor.from(new Int32Array(8).fill(token), { shape: [2, 4] }),
  );
  engine.backward(engine.forward<Tensor>(ids, targets));
  const request = { prompt: [1, 5, 9], maxNewTokens: 4, temperature: 0, ignoreEos: true };
  const plain = rolloutsOf(engine);
  const expected = (await plain.generate([request]))[0]?.[0]?.tokens;
  await plain.destroy();
  const rollouts = rolloutsOf(engine, { offload: ['optim_states'] });
  const pending = rollouts.generate([request]);
  expect(await errorOf(() => engine.step())).toMatch(/^DS_RELEASED/);
  expect((await pending)[0]?.[0]?.tokens).toEqual(expected);
  engine.step();
  expect(await errorOf(() => rolloutsOf(engine, { offload: ['lp_params'] as never }))).toMatch(
    /^DS_ARGUMENT rolloutsOf offload/,
  );
  await rollouts.destroy();
  engine.destroy();
});

test('two ranks have equal bits at all stages', async () => {
  const stages = [0, 1, 2, 3];
  const runs = stages.flatMap((stage): OffloadRun[] =>
    [null, 'between' as const, 'micro' as const].map((moves) => ({
      config: config(stage, { bf16: { enabled: true }, gradient_accumulation_steps: 2 }),
      moves,
      options: { pinMemory: false },
    })),
  );
  const results = await runRanks('../engine/offload-states-process', 2, { job: runs });
  for (const reports of reportsOf<OffloadReport[]>(results)) {
    for (const stage of stages) {
      const [plain, between, micro] = reports.slice(3 * stage, 3 * stage + 3);
      expect([stage, between?.bits, micro?.bits]).toEqual([stage, plain?.bits, plain?.bits]);
      expect(Math.min(...(between?.freed ?? []))).toBeGreaterThan(0);
    }
  }
});

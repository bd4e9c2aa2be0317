// Tests initialize() with stage and offload left to the plan: the choice on a GPU and the CPU, its
// messages and errors. The run has the bits of the same choice written out.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { plannedConfigs, resolveConfig } from '../../lib/config/index.js';
import { chooseConfig, chooseUpdates, measureModel } from '../../lib/engine/setup/memory.js';
import { type DsConfig, initialize, nn, optim, seed, Trainer } from '../../lib/index.js';
import { findAvailableMemory, type RankMemory } from '../../lib/plan/rank-memory.js';
import { cpu } from '../../lib/runtime/device.js';
import { hostLimits } from '../../lib/runtime/host-limits.js';
import { stateBits, tinyConfig, tinyModel, trainTiny, weightBits } from '../e2e/tiny-training.js';
import { captureOutput } from '../support/printed.js';
import { samples, tinyModel as tinier, type Window } from '../trainer/tiny.js';

jest.mock('../../lib/runtime/host-limits.js', () => {
  const actual = jest.requireActual('../../lib/runtime/host-limits.js');
  return { ...actual, hostLimits: jest.fn(actual.hostLimits) };
});

/** The plan counts the cores, so these tests fix their number. */
jest.mock('node:os', () => ({
  ...jest.requireActual('node:os'),
  availableParallelism: () => 2,
}));

const GIB = 2 ** 30;
const AUTO = { stage: 'auto', offload_optimizer: 'auto', offload_param: 'auto' } as const;

const limits = (gib: number, canGrow = false) => ({
  machine: 'a',
  total: 256 * GIB,
  free: gib * GIB,
  atMost: 256 * GIB,
  canGrow,
  groups: [],
});

/** A model without parameter memory, on a simulated GPU. */
async function onGpu(
  device: number,
  host: number,
  more: object = {},
  { canGrow = false, shards = 1, own = {}, plan = null as object | null, card = 'H200' } = {},
) {
  const module = new nn.models.GPT2(nn.models.GPT2.config('1558M'));
  const memory = { cap: 0, total: device * GIB, inUse: 0 };
  const gpu = { kind: 'cuda', name: 'cuda:0', memory, info: { name: `NVIDIA ${card}` } };
  const mesh = { size: (axis: string) => (axis === 'dp' ? shards : 1) };
  const job = { world: { device: gpu }, worldSize: 1, rank: 0, mesh } as never;
  const options = {
    train_micro_batch_size_per_gpu: 4,
    bf16: { enabled: true },
    zero_optimization: AUTO,
  };
  const ways = plannedConfigs({ ...options, ...more } as DsConfig, { worldSize: 1 });
  if (!ways) throw new Error('nothing is left to the plan');
  const adamW = new optim.AdamW(module.parameters(), { lr: 1e-3 });
  const optimizer = Object.assign(adamW, own);
  const asked = { module, config: ways.configs[0], optimizer, plan } as never;
  const planned = { ...ways, sequenceLength: undefined };
  jest.mocked(hostLimits).mockReturnValueOnce(limits(host, canGrow));
  const before = cpu().memory.allocations;
  let zero: unknown;
  const line = await captureOutput(async () => {
    const config = await chooseConfig(job, asked, planned, measureModel(module, job));
    zero = config.zero_optimization;
  });
  expect(cpu().memory.allocations).toBe(before);
  return { zero, line };
}

/** The same with 10B parameters, and weights and state in host memory as in `offload`. */
async function updatesOnGpu(device: number, host: number, offload: object = {}, more: object = {}) {
  const sizes = { vocabSize: 50304, maxSeq: 1024, layers: 50, heads: 32, channels: 4096 };
  const module = new nn.models.GPT2({ ...sizes, activationCheckpointing: true });
  const memory = { cap: device * GIB, total: 139 * GIB, inUse: 0 };
  const gpu = { kind: 'cuda', name: 'cuda:0', memory, info: { name: 'NVIDIA H200' } };
  const job = { world: { device: gpu }, worldSize: 1, rank: 0, mesh: { size: () => 1 } } as never;
  const zero_optimization = {
    stage: 3,
    offload_param: { device: 'cpu' },
    offload_optimizer: { device: 'cpu', ...offload },
  };
  const options = {
    train_micro_batch_size_per_gpu: 10,
    bf16: { enabled: true },
    zero_optimization,
  };
  const config = resolveConfig({ ...options, ...more } as DsConfig, { worldSize: 1 });
  const optimizer = new optim.AdamW(module.parameters(), {
    lr: 1e-3,
    fp32OptimizerStates: false,
  });
  const asked = { module, config, optimizer, plan: null } as never;
  jest.mocked(hostLimits).mockReturnValueOnce(limits(host));
  const notices: string[] = [];
  const warn = jest.spyOn(process, 'emitWarning').mockImplementation((text) => {
    notices.push(String(text));
  });
  try {
    const found = await chooseUpdates(job, asked, () => measureModel(module, job));
    const { super_offload, gpu_share } = found.zero_optimization.offload_optimizer;
    return { super_offload, gpu_share, notices };
  } finally {
    warn.mockRestore();
    // A mocked limit that this test has not consumed must not reach the next test.
    const { hostLimits: actual } = jest.requireActual('../../lib/runtime/host-limits.js');
    jest.mocked(hostLimits).mockReset().mockImplementation(actual);
  }
}

describe('updates of weights in host memory on a GPU', () => {
  beforeEach(() => cpu().trim());

  test('wait for the step decision if the device is short of memory, as in the plan', async () => {
    const short = await updatesOnGpu(32, 200);
    expect(short).toMatchObject({ super_offload: false, gpu_share: null });
    expect(short.notices).toEqual([
      expect.stringMatching(/^initialize: updates wait .* lacks memory/),
    ]);
    // Only updates of the CPU alone fit into 16 GiB, and none into 8 GiB.
    expect((await updatesOnGpu(16, 200)).super_offload).toBe(false);
    expect((await updatesOnGpu(8, 200)).super_offload).toBeNull();
    const wide = { super_offload: null, gpu_share: null, notices: [] };
    expect(await updatesOnGpu(96, 200)).toEqual(wide);
    expect(await updatesOnGpu(139, 200)).toEqual(wide);
  });

  test('keep given values, which the plan does not change', async () => {
    for (const super_offload of [true, false]) {
      const found = await updatesOnGpu(32, 200, { super_offload });
      expect(found).toEqual({ super_offload, gpu_share: null, notices: [] });
    }
    const zero_optimization = { stage: 2, offload_optimizer: { device: 'cpu' } };
    const elsewhere = await updatesOnGpu(32, 200, {}, { zero_optimization });
    expect(elsewhere).toEqual({ super_offload: null, gpu_share: null, notices: [] });
  });
});

describe('for a GPU', () => {
  // Memory that earlier tests left in the allocator counts as free.
  beforeEach(() => cpu().trim());

  test('the choice is printed in one line, with its bytes and its time', async () => {
    const { zero, line } = await onGpu(139, 128);
    expect(zero).toMatchObject({ stage: 0, offload_optimizer: { device: 'none' } });
    expect(line).toMatch(
      /^zero_optimization: stage 0, offload_optimizer none, offload_param none: \d+\.\d GiB of 139\.0 GiB of the memory of cuda:0, \d+\.\d MiB of 128\.0 GiB of host memory with micro-batches of 4 x 1024 tokens, 0\.\d+ s a step by the rates of an H200\n$/,
    );
  });

  test('a card that was not measured has estimated rates', async () => {
    const { line } = await onGpu(39, 128, {}, { card: 'A100-SXM4-40GB' });
    expect(line).toMatch(/, 0\.\d+ s a step by estimated rates of the A100-40G\n$/);
  });

  test('less memory moves state, and then weights', async () => {
    const half = await onGpu(28, 128);
    expect(half.zero).toMatchObject({ offload_optimizer: { device: 'cpu' } });
    expect((half.zero as { stage: number }).stage).toBeGreaterThan(0);
    expect(half.line).toMatch(/^zero_optimization: stage \d, offload_optimizer cpu \(ratio 0\.\d/);
    const least = await onGpu(18, 128);
    expect(
      (least.zero as { offload_optimizer: { ratio: number } }).offload_optimizer.ratio,
    ).toBeGreaterThan(
      (half.zero as { offload_optimizer: { ratio: number } }).offload_optimizer.ratio,
    );
  });

  test('given keys are kept', async () => {
    const zero = {
      stage: 2,
      offload_optimizer: { device: 'cpu', ratio: 'auto', gpu_share: 0, super_offload: true },
    };
    const { zero: found } = await onGpu(139, 128, { zero_optimization: zero });
    expect(found).toMatchObject({
      stage: 2,
      offload_param: { device: 'none' },
      offload_optimizer: { device: 'cpu', ratio: 0.25, gpu_share: 0, super_offload: true },
    });
  });

  test('an optimizer for whole parameters is sharded only if the stage is given', async () => {
    const settings = { needsWholeParameters: () => true };
    const offload = { offload_optimizer: 'auto' } as const;
    const free = await onGpu(40, 128, {}, { shards: 4, own: settings });
    expect(free.zero).toMatchObject({ stage: 0 });
    const sharing = await onGpu(40, 128, {}, { shards: 4 });
    expect((sharing.zero as { stage: number }).stage).toBeGreaterThan(0);
    const zero_optimization = { stage: 2, ...offload };
    const written = await onGpu(60, 128, { zero_optimization }, { shards: 4, own: settings });
    expect(written.zero).toMatchObject({ stage: 2, offload_optimizer: { device: 'none' } });
  });

  test('an optimizer that exchanges moments is not sharded', async () => {
    const resident = { stage: 'auto', offload_optimizer: { device: 'none' } } as const;
    const free = await onGpu(40, 128, { zero_optimization: resident }, { shards: 4 });
    expect((free.zero as { stage: number }).stage).toBeGreaterThan(0);
    const settings = { passOf() {} };
    const exchanging = await onGpu(
      40,
      128,
      { zero_optimization: resident },
      { shards: 4, own: settings },
    );
    expect(exchanging.zero).toMatchObject({ stage: 0 });
  });

  test('a model in pipeline stages gets no stage 3, and over several ranks no stage 2', async () => {
    const none = { offload_optimizer: { device: 'none' }, offload_param: { device: 'none' } };
    const resident = { stage: 'auto', ...none };
    const stageOf = async (gib: number, zero_optimization: object, more: object) => {
      const { zero } = await onGpu(gib, 128, { zero_optimization }, more);
      return (zero as { stage: number }).stage;
    };
    const plan = {};
    expect(await stageOf(30, resident, { shards: 4 })).toBe(3);
    expect(await stageOf(30, resident, { shards: 4, plan })).toBe(1);
    expect(await stageOf(70, resident, { plan })).toBe(0);
    expect(await stageOf(14, AUTO, {})).toBe(3);
    await expect(stageOf(14, AUTO, { plan })).rejects.toThrow(/with stage 1, offload_optimizer/);
  });

  test('the choice is deterministic', async () => {
    const [first, second] = [await onGpu(30, 60), await onGpu(30, 60)];
    expect(second).toEqual(first);
  });

  test('if nothing fits, the error has the smallest memory need and suggestions', async () => {
    await expect(onGpu(4, 128)).rejects.toMatchObject({
      code: 'DS_OUT_OF_MEMORY',
      op: 'initialize',
      expected: expect.stringMatching(
        /^\d+\.\d GiB of the memory of cuda:0 \(.*gradients .*activations .*margin .*\) by the plan, with stage 3, offload_optimizer cpu.*, offload_param cpu, the smallest choice of "auto"$/,
      ),
      got: '4.0 GiB',
      hint: expect.stringMatching(/^Reduce train_micro_batch_size_per_gpu or .* npx ds plan/),
    });
    await expect(onGpu(12, 2)).rejects.toMatchObject({
      expected: expect.stringMatching(/GiB of host memory \(optimizer /),
      got: '12.0 GiB, 2.0 GiB',
    });
    // The host lacks memory, and activations need none there.
    const offload = { zero_optimization: { ...AUTO, offload_optimizer: { device: 'cpu' } } };
    await expect(onGpu(60, 2, offload)).rejects.toMatchObject({
      got: '2.0 GiB',
      hint: expect.not.stringContaining('activationCheckpointing'),
    });
  });

  test('a virtual machine may grow into memory that it does not have yet', async () => {
    const { zero, line } = await onGpu(16, 2, {}, { canGrow: true });
    expect(zero).toMatchObject({ offload_optimizer: { device: 'cpu' } });
    expect(line).toMatch(/of 2\.0 GiB of host memory \(a virtual machine may receive more\)/);
  });

  test('longer declared samples need more memory', async () => {
    const long = { train_micro_batch_size_per_gpu: 16 };
    const [few, many] = [await onGpu(60, 128), await onGpu(60, 128, long)];
    expect(few.zero).toMatchObject({ offload_optimizer: { device: 'none' } });
    expect(many.zero).toMatchObject({ offload_optimizer: { device: 'cpu' } });
  });
});

describe('the memory of the ranks', () => {
  const memoryOf = (more: Partial<RankMemory>): RankMemory => ({
    machine: 'a',
    cores: 8,
    device: 100,
    deviceName: 'cuda:0',
    card: '',
    host: 80,
    hostAtMost: 80,
    returned: 0,
    disk: 40,
    ...more,
  });

  test('the smallest rank decides, and ranks of a machine share its free memory', () => {
    expect(
      findAvailableMemory([memoryOf({}), memoryOf({ device: 60, host: 50, hostAtMost: 70 })]),
    ).toEqual({
      device: 60,
      host: 25,
      hostAtMost: 35,
      disk: 20,
    });
    const apart = [memoryOf({}), memoryOf({ machine: 'b', host: 50, hostAtMost: 50 })];
    expect(findAvailableMemory(apart)).toEqual({ device: 100, host: 50, hostAtMost: 50, disk: 40 });
  });

  test('memory that a model returns counts as free; a device without a limit has no limit', () => {
    const [a, b] = [
      memoryOf({ device: null, returned: 10 }),
      memoryOf({ device: null, returned: 10 }),
    ];
    expect(findAvailableMemory([a, b])).toMatchObject({ device: null, host: 50 });
  });
});

/** On the CPU; its cap stands for a device's memory. */
async function trainPlanned(zero: DsConfig['zero_optimization'], cap = 0) {
  const device = cpu();
  seed(1234);
  const model = tinyModel();
  const config = { ...tinyConfig({ precision: 'bf16', offload: false }), zero_optimization: zero };
  device.trim();
  device.setMemoryCap(cap);
  let line = '';
  try {
    let engine: Awaited<ReturnType<typeof initialize>>['engine'] | undefined;
    line = await captureOutput(async () => {
      ({ engine } = await initialize({ model, config, device }));
    });
    device.setMemoryCap(0);
    if (!engine) throw new Error('no engine');
    const losses = trainTiny(engine, 0, 4);
    const run = { losses, weights: weightBits(engine), state: stateBits(engine) };
    const { zero_optimization: chosen } = engine.config;
    engine.destroy();
    return { line, run, chosen };
  } finally {
    device.setMemoryCap(0);
  }
}

describe('on the CPU', () => {
  test('without offload, the line explains it, and results equal those of explicit keys', async () => {
    const asked = await trainPlanned(AUTO);
    expect(asked.line).toMatch(
      /^zero_optimization: stage 0, offload_optimizer none, offload_param none, because the CPU computes in host memory: \d+\.\d MiB of \d+\.\d GiB of host memory with micro-batches of 3 x 32 tokens\n$/,
    );
    const written = await trainPlanned({ stage: 0 });
    expect(written.line).toBe('');
    expect(asked.chosen).toEqual(written.chosen);
    expect(asked.run).toEqual(written.run);
  });

  test('explicit keys are kept: stage 0 has no offload', async () => {
    const offload_optimizer = { device: 'cpu', super_offload: false, gpu_share: 0 } as const;
    const asked = await trainPlanned({ stage: 'auto', offload_optimizer });
    expect(asked.chosen.stage).toBe(1);
    const written = await trainPlanned({ stage: 1, offload_optimizer });
    expect(asked.run).toEqual(written.run);
  });

  test('too little memory is refused before anything is allocated', async () => {
    const { allocations } = cpu().memory;
    await expect(trainPlanned(AUTO, 2 ** 14)).rejects.toMatchObject({
      code: 'DS_OUT_OF_MEMORY',
      expected: expect.stringMatching(/of the memory of cpu \(weights .* by the plan, with stage/),
      got: '0.0 MiB',
    });
    expect(cpu().memory.allocations - allocations).toBeLessThan(60);
  });

  test('a custom nn.Module has unknown activations, as the line states', async () => {
    const model = new nn.Linear(8, 8);
    const line = await captureOutput(async () => {
      const config = {
        train_batch_size: 1,
        optimizer: { type: 'AdamW', params: {} },
        zero_optimization: AUTO,
      } as DsConfig;
      (await initialize({ model, config, device: 'cpu' })).engine.destroy();
    });
    expect(line).toMatch(/of host memory, before activations\n$/);
  });

  test('counts weights stored in few bits at their size', async () => {
    const layers = Array.from({ length: 4 }, () => new nn.Linear(1024, 1024, { bias: false }));
    const model = new nn.Sequential(...layers);
    const line = await captureOutput(async () => {
      const config: DsConfig = {
        train_batch_size: 1,
        bf16: { enabled: true },
        weight_quantization: { quantized_initialization: { num_bits: 4 } },
        zero_optimization: { stage: 3, offload_param: 'auto' },
      };
      (await initialize({ model, config, device: 'cpu' })).engine.destroy();
    });
    // 2 bytes per parameter of 4 Mi would be 8.4 MiB, in addition to 537.6 of the process.
    const [, mebibytes] = /: (\d+\.\d) MiB of/.exec(line) ?? [];
    expect(Number(mebibytes)).toBeGreaterThan(539);
    expect(Number(mebibytes)).toBeLessThan(543);
  });

  test('a run continues from a checkpoint of another stage and offload', async () => {
    const dir = mkdtempSync(join(tmpdir(), 'ds-planned-'));
    const build = async (zero: DsConfig['zero_optimization']) => {
      seed(1234);
      const config = {
        ...tinyConfig({ precision: 'bf16', offload: false }),
        zero_optimization: zero,
      };
      const { engine } = await initialize({ model: tinyModel(), config, device: 'cpu' });
      return engine;
    };
    try {
      const offload_optimizer = { device: 'cpu', super_offload: false } as const;
      const first = await build({ stage: 3, offload_optimizer, offload_param: { device: 'cpu' } });
      trainTiny(first, 0, 3);
      await first.saveCheckpoint(dir);
      const expected = trainTiny(first, 3, 6);
      const bits = weightBits(first);
      first.destroy();
      await captureOutput(async () => {
        const second = await build(AUTO);
        expect(second.config.zero_optimization.stage).toBe(0);
        await second.loadCheckpoint(dir);
        expect(trainTiny(second, 3, 6)).toEqual(expected);
        expect(weightBits(second)).toEqual(bits);
        second.destroy();
      });
    } finally {
      rmSync(dir, { recursive: true });
    }
  });

  test('a Trainer uses the same plan as initialize()', async () => {
    const run = async (zero_optimization: DsConfig['zero_optimization']) => {
      const trainer = new Trainer<Window>({
        model: tinier(),
        train: samples(8),
        device: 'cpu',
        progress: false,
        lr: 3e-3,
        batchSize: 2,
        maxSteps: 3,
        stopSignals: [],
        deepspeed: { zero_optimization },
        data: { sequenceLength: 9 },
      });
      const losses: unknown[] = [];
      for await (const event of trainer.train()) if (event.type === 'log') losses.push(event.loss);
      await trainer.destroy();
      return losses;
    };
    let losses: unknown[] = [];
    const line = await captureOutput(async () => {
      losses = await run(AUTO);
    });
    expect(
      line.match(/^zero_optimization: stage 0.* with micro-batches of 2 x 9 tokens$/gm),
    ).toHaveLength(1);
    expect(losses).toEqual(await run({ stage: 0 }));
  });
});

// Tests which steps a run of the autotuner measures. A clock of the test replaces the real time.
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Mesh } from '../../lib/comm/mesh.js';
import { MeshShape } from '../../lib/comm/mesh-shape.js';
import { type ResolvedConfig, resolveConfig } from '../../lib/config/index.js';
import { describeModel, wholeModel } from '../../lib/engine/setup/memory.js';
import { buildTimer } from '../../lib/engine/setup/observers.js';
import { NoOptimizer } from '../../lib/engine/setup/optimizer.js';
import { FirstForward, MeasuredSteps } from '../../lib/engine/watch/experiment.js';
import { MemoryBreakdown } from '../../lib/engine/watch/memory-breakdown.js';
import { EventTimer, type PhaseTimer } from '../../lib/engine/watch/phase-timer.js';
import { ProfiledStep } from '../../lib/engine/watch/profiled-step.js';
import { untimed } from '../../lib/engine/watch/step-watch.js';
import { type nn, optim } from '../../lib/index.js';
import { Linear } from '../../lib/nn/index.js';
import { FlopsProfiler } from '../../lib/profiler/index.js';
import { cpu } from '../../lib/runtime/device.js';
import { held, Tensor } from '../../lib/tensor/index.js';
import { tinyModel } from '../e2e/tiny-training.js';

const folder = mkdtempSync(join(tmpdir(), 'ds-measured-steps-'));
afterAll(() => rmSync(folder, { recursive: true }));
afterEach(() => jest.restoreAllMocks());

const inner = { time: (_: string, body: () => unknown) => body(), finishStep() {}, dispose() {} };

/** Runs steps with these times in ms, and returns the result when the run would end. */
function measureSteps(
  times: readonly number[],
  { start, end }: { start: number; end: number },
): Record<string, number> & { steps: number } {
  let clock = 1000;
  let isOver = false;
  jest.spyOn(performance, 'now').mockImplementation(() => clock);
  jest.spyOn(process, 'exit').mockImplementation((() => {
    isOver = true;
  }) as never);
  const path = join(folder, 'metrics.json');
  const autotuning = {
    start_profile_step: start,
    end_profile_step: end,
    metric: 'throughput',
    metric_path: path,
  };
  const timer = new MeasuredSteps(inner as unknown as PhaseTimer, {
    module: new Linear(2, 2),
    device: cpu(),
    config: { autotuning, train_batch_size: 6 } as unknown as ResolvedConfig,
    world: { rank: 0, size: 1 } as never,
    isPipeline: false,
  });
  let steps = 0;
  for (const time of times) {
    // The program's own work between two steps, then forward and backward.
    clock += time / 2;
    for (const phase of ['forward', 'backward'] as const) {
      timer.time(phase, () => {
        clock += time / 4;
      });
    }
    timer.finishStep(++steps, 6);
    if (isOver) break;
  }
  expect(isOver).toBe(true);
  return { ...JSON.parse(readFileSync(path, 'utf8')), steps };
}

test('the steps after start_profile_step count, with the work between them', () => {
  const result = measureSteps([1000, 1000, 1000, 40, 60, 80, 5], { start: 3, end: 5 });
  expect(result).toMatchObject({ latency: 60, throughput: 100, train_batch_size: 6, steps: 6 });
});

test('from step 0 on, the first forward starts the measurement', () => {
  const result = measureSteps([40, 60, 80, 5], { start: 0, end: 1 });
  // Half of the first step passes before its forward.
  expect(result).toMatchObject({ latency: (20 + 60) / 2, throughput: 150, steps: 2 });
});

test('FLOPs are counted in an additional step, time in the other steps', () => {
  let clock = 1000;
  const exits: number[] = [];
  jest.spyOn(performance, 'now').mockImplementation(() => clock);
  jest
    .spyOn(process, 'exit')
    .mockImplementation(((code: number) => void exits.push(code)) as never);
  const path = join(folder, 'flops.json');
  const module = new Linear(2, 2);
  const timer = new MeasuredSteps(inner as unknown as PhaseTimer, {
    module,
    device: cpu(),
    world: { rank: 0, size: 1 } as never,
    isPipeline: false,
    config: {
      autotuning: {
        start_profile_step: 1,
        end_profile_step: 1,
        metric: 'flops',
        metric_path: path,
      },
      train_batch_size: 6,
    } as unknown as ResolvedConfig,
  });
  for (let step = 1; step <= 3; step++) {
    timer.time('forward', () => {
      clock += 50;
      const x = Tensor.from([1, 2], { shape: [1, 2] });
      module.call(x).dispose();
      x.dispose();
    });
    timer.finishStep(step, 6);
    expect(exits).toHaveLength(step === 3 ? 1 : 0);
  }
  expect(exits).toEqual([0]);
  const result = JSON.parse(readFileSync(path, 'utf8')) as Record<string, number>;
  expect(result.latency).toBe(50);
  // At least 2 x 2 products and sums in 50 ms.
  expect(result.FLOPS_per_gpu).toBeGreaterThanOrEqual((8 * 1000) / 50);
  expect(result.FLOPS_per_gpu).toBeLessThan((40 * 1000) / 50);
});

test('FLOPs are those of forward, backward and recomputation', () => {
  const work = { forward: { flops: 1e6 }, backward: { flops: 2e6 }, recompute: { flops: 4e6 } };
  jest.spyOn(FlopsProfiler.prototype, 'profile').mockReturnValue({ work } as never);
  let clock = 0;
  jest.spyOn(performance, 'now').mockImplementation(() => clock);
  jest.spyOn(process, 'exit').mockReturnValue(undefined as never);
  const path = join(folder, 'work.json');
  const autotuning = { start_profile_step: 1, end_profile_step: 1, metric: 'flops' };
  const timer = new MeasuredSteps(inner as unknown as PhaseTimer, {
    module: new Linear(2, 2),
    device: cpu(),
    world: { rank: 0, size: 1 } as never,
    isPipeline: false,
    config: { autotuning: { ...autotuning, metric_path: path }, train_batch_size: 6 } as never,
  });
  for (let step = 1; step <= 3; step++) {
    clock += 20;
    timer.finishStep(step, 6);
  }
  const result = JSON.parse(readFileSync(path, 'utf8')) as Record<string, number>;
  expect([result.latency, result.FLOPS_per_gpu]).toEqual([20, (7e6 * 1000) / 20]);
});

describe('the first forward of a model', () => {
  /**
   * Runs one forward that keeps a tensor; returns the written file, and the ends of the process.
   */
  function describeModel(
    options: { rank?: number; world?: object; isPipeline?: boolean; shape?: number[] } = {},
  ) {
    const { rank = 0, isPipeline = false, shape = [2, 5] } = options;
    const { world = { rank, size: 1 } } = options;
    const ends: unknown[] = [];
    jest
      .spyOn(process, 'exit')
      .mockImplementation(((code: number) => void ends.push(code)) as never);
    const file = join(folder, 'info.json');
    writeFileSync(file, JSON.stringify({ num_params: 3 }));
    const module = new Linear(5, 4);
    const timer = new FirstForward(
      inner as unknown as PhaseTimer,
      {
        module,
        device: cpu(),
        world: world as never,
        isPipeline,
        config: { train_micro_batch_size_per_gpu: 2 } as unknown as ResolvedConfig,
      },
      file,
    );
    const kept: Tensor[] = [];
    const x = held(() => Tensor.from(new Float32Array(10), { shape }));
    timer.time('backward', () => {});
    expect(ends).toEqual([]);
    timer.time('forward', () => kept.push(held(() => module.call(x))));
    const ended = ends.length;
    timer.finishStep();
    timer.dispose();
    for (const tensor of [...kept, x]) tensor.release();
    const { activation_mem_per_gpu: memory, ...info } = JSON.parse(readFileSync(file, 'utf8'));
    return { memory, info, ended, ends };
  }

  test('is described with the bytes that it keeps for a sample, and the length of samples', () => {
    const { memory, info, ended, ends } = describeModel();
    expect(info).toEqual({ num_params: 3, sequence_length: 5 });
    // 2 x 4 elements of 4 bytes, or the block of the allocator with them.
    expect(memory).toBeGreaterThanOrEqual(16);
    expect([ended, ends]).toEqual([1, [0, 0]]);
  });

  test('ends the processes of all ranks together', () => {
    const waited: unknown[] = [];
    const allReduce = jest.fn(() => ({ wait: (stream: unknown) => void waited.push(stream) }));
    const { compute: stream } = cpu();
    expect(describeModel({ world: { rank: 0, size: 2, allReduce } }).ends).toEqual([0, 0]);
    const call = [expect.anything(), { stream, purpose: 'the end of an experiment' }];
    expect([allReduce.mock.calls, waited]).toEqual([
      [call, call],
      [stream, stream],
    ]);
  });

  test('of another rank writes nothing; a pipeline ends after its step', () => {
    expect(describeModel({ rank: 1 }).info).toEqual({ num_params: 3 });
    expect(describeModel({ isPipeline: true })).toMatchObject({ ended: 0, ends: [0] });
  });
});

describe('the timer of an engine', () => {
  const timerOf = (more: object, prints = true) => {
    const config = resolveConfig({ train_micro_batch_size_per_gpu: 1, ...more } as never, {
      worldSize: 1,
    });
    const world = { rank: 0, size: 1 };
    const watched = {
      module: new Linear(2, 2),
      device: cpu(),
      stage: { partitions: [], frozen: [], slotBytes: 0 },
      state: { bytes: { device: 0, host: 0, disk: 0 } },
      ranks: { world, mesh: new Mesh(MeshShape.over(1, {}), world as never, null as never) },
    };
    jest.spyOn(process.stdout, 'write').mockReturnValue(true);
    return buildTimer(config, watched as never, prints);
  };
  const profiled = { flops_profiler: { enabled: true } };
  const both = { ...profiled, memory_breakdown: true };

  test('records nothing by default, and prints on the first rank alone', () => {
    expect(timerOf({})).toBe(untimed);
    expect(timerOf({ wall_clock_breakdown: true })).toBeInstanceOf(EventTimer);
    expect(timerOf(profiled)).toBeInstanceOf(ProfiledStep);
    expect(timerOf(both)).toBeInstanceOf(MemoryBreakdown);
    expect(timerOf(both, false)).toBe(untimed);
    expect(timerOf({ ...both, wall_clock_breakdown: true }, false)).toBeInstanceOf(EventTimer);
  });

  test('measures where the autotuner asks for it, on every rank', () => {
    const tuningConfig = (more: object, enabled = true) => ({ autotuning: { enabled, ...more } });
    const metrics = { metric_path: join(folder, 'm.json') };
    expect(timerOf(tuningConfig(metrics), false)).toBeInstanceOf(MeasuredSteps);
    expect(timerOf(tuningConfig(metrics, false), false)).toBe(untimed);
    expect(timerOf(tuningConfig({}), false)).toBe(untimed);
  });
});

describe('the description of a model for autotuning', () => {
  const path = join(folder, 'info.json');
  const linear = () => new Linear(16, 32);
  const adam = (params: nn.Parameter[]) => new optim.AdamW(params, { lr: 0.1 });

  async function describeRun(
    { rank = 0, enabled = true, profile = true }: { rank?: number } & Record<string, unknown>,
    module: nn.Module = linear(),
    optimizer: object = adam(module.parameters()),
  ): Promise<Record<string, unknown> | null> {
    const model_info = { profile };
    const autotuning = { enabled, model_info, model_info_path: path };
    const input = { train_batch_size: 1, autotuning } as never;
    const config = resolveConfig(input, { worldSize: 1 });
    const mesh = new Mesh(MeshShape.over(1), { rank: 0, size: 1 } as never, null as never);
    const job = { rank, worldSize: 1, world: { device: cpu() }, mesh } as never;
    const fullModel = wholeModel({ module, config, job, planned: null } as never);
    rmSync(path, { force: true });
    await describeModel(job, { module, config, optimizer } as never, fullModel);
    return existsSync(path) ? JSON.parse(readFileSync(path, 'utf8')) : null;
  }

  test('is written by the first rank of the first run', async () => {
    const info = await describeRun({});
    expect(info).toMatchObject({
      num_params: 544,
      trainable_num_params: 544,
      knowsActivations: false,
      activation_mem_per_gpu: null,
      sequence_length: null,
      checkpointing: false,
      isHost: true,
      deviceName: 'cpu',
      card: cpu().info.name,
      mesh: { data: 1, tokens: 1, layers: 1, stages: 1 },
    });
    expect(info?.sizes).toMatchObject({ parameters: 544, trained: { count: 544 } });
    expect(await describeRun({ rank: 1 })).toBeNull();
    expect(await describeRun({ enabled: false })).toBeNull();
    expect(await describeRun({ profile: false })).toBeNull();
  });

  test('has no trained parameters without an optimizer', async () => {
    expect(await describeRun({}, linear(), new NoOptimizer())).toMatchObject({
      num_params: 544,
      trainable_num_params: 0,
      sizes: { trained: { count: 0, inFixedDtype: { count: 0, bytes: 0 }, root: 0, block: 0 } },
    });
  });

  test('has the activations of a language model, and whether it recomputes them', async () => {
    const of = (checkpointing: boolean) => describeRun({}, tinyModel({ checkpointing }));
    expect(await of(false)).toMatchObject({ knowsActivations: true, checkpointing: false });
    expect(await of(true)).toMatchObject({ knowsActivations: true, checkpointing: true });
  });
});

// Tests that training with offload equals training without it: losses and weights, bit for bit, in
// every precision.
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { isDeepStrictEqual } from 'node:util';
import { type Engine, initialize, nn, optim, scope, Tensor, zero } from '../../lib/index.js';
import type { Device } from '../../lib/runtime/device.js';
import { seed } from '../../lib/tensor/index.js';
import type { Case } from '../support/case.js';
import {
  type Precision,
  type TinyOptions,
  tinyConfig,
  tinyEngine,
  tinyModel,
  trainTiny,
  weightBits,
} from './tiny-training.js';

const steps = 50;

/** The outcome of a run. */
interface Outcome {
  losses: number[];
  weights: Map<string, string>;
  skipped: number;
}

async function outcomeOf(options: TinyOptions, device: Device): Promise<Outcome> {
  const engine = await tinyEngine(options, device);
  const losses = trainTiny(engine, 0, steps);
  const outcome = { losses, weights: weightBits(engine), skipped: engine.skippedSteps };
  engine.destroy();
  return outcome;
}

/** Runs without offload, by device and options: several cases compare with the same one. */
const residents = new Map<string, Outcome>();

async function residentOutcome(
  options: Omit<TinyOptions, 'offload'>,
  device: Device,
): Promise<Outcome> {
  const key = JSON.stringify([device.name, options]);
  const resident = residents.get(key) ?? (await outcomeOf({ ...options, offload: false }, device));
  residents.set(key, resident);
  return resident;
}

/** `offload`: whether the optimizer is offloaded, in addition to `zero`. */
function equalCase(
  label: string,
  { zero, offload = true, ...options }: Omit<TinyOptions, 'offload'> & { offload?: boolean },
): Case {
  return {
    name: `offload equals resident: ${label}, ${steps} steps`,
    async run(device) {
      device.setDeterministic(true);
      const resident = await residentOutcome(options, device);
      const { losses, weights, skipped } = await outcomeOf({ ...options, zero, offload }, device);
      assert.deepEqual(losses, resident.losses);
      assert.ok((losses.at(-1) as number) < (losses[0] as number) * 0.8, `no learning: ${losses}`);
      for (const [name, bits] of weights) assert.equal(bits, resident.weights.get(name), name);
      assert.equal(skipped, resident.skipped);
      if (options.precision === 'fp16') assert.ok(skipped > 0, 'no overflow was provoked');
    },
  };
}

/** An engine with ranges of two parameter groups in every unit. */
async function groupedEngine(options: TinyOptions, device: Device): Promise<Engine> {
  seed(1234);
  const model = tinyModel();
  const config = { ...tinyConfig(options), scheduler: null };
  const isMatrix = ({ shape }: Tensor): boolean => shape.length > 1;
  const optimizer = new optim.AdamW([
    { params: model.parameters().filter((parameter) => !isMatrix(parameter)), lr: 1e-3 },
    { params: model.parameters().filter(isMatrix), lr: 3e-3, weightDecay: 0.1 },
  ]);
  return (await initialize({ model, config, device, optimizer })).engine;
}

const groupsCase = (speculative: boolean): Case => ({
  name: `offload equals resident: two groups, sub-groups of 1000, speculative ${speculative}`,
  async run(device) {
    device.setDeterministic(true);
    const common = { precision: 'bf16', clip: 1.4 } as const;
    const resident = await groupedEngine({ ...common, offload: false }, device);
    const zero = { sub_group_size: 1000 };
    const offloaded = await groupedEngine({ ...common, zero, speculative, offload: true }, device);
    assert.deepEqual(trainTiny(offloaded, 0, 20), trainTiny(resident, 0, 20));
    assert.deepEqual(weightBits(offloaded), weightBits(resident));
    resident.destroy();
    offloaded.destroy();
  },
});

const precisions: Precision[] = ['fp32', 'bf16', 'fp16'];

/** The rate, the precision and the section of every optimizer except AdamW. */
const optimizers: Pick<TinyOptions, 'lr' | 'precision' | 'optimizer'>[] = [
  { lr: 0.3, precision: 'bf16', optimizer: { type: 'SGD', params: { weight_decay: 1e-3 } } },
  {
    lr: 0.05,
    precision: 'fp16',
    optimizer: { type: 'SGD', params: { momentum: 0.9, nesterov: true } },
  },
  {
    lr: 0.02,
    precision: 'bf16',
    optimizer: { type: 'Adagrad', params: { lr_decay: 0.01, initial_accumulator_value: 1e-4 } },
  },
  {
    lr: 3e-3,
    precision: 'fp16',
    optimizer: { type: 'Lion', params: { betas: [0.9, 0.99], weight_decay: 0.1 } },
  },
  {
    lr: 3e-3,
    precision: 'fp32',
    optimizer: { type: 'Adam', params: { adam_w_mode: false, weight_decay: 0.01 } },
  },
];

/** Weights in host memory, gathered for each use: all of them stay afterwards, or all are freed. */
const offloadedWeights: Record<string, Exclude<TinyOptions['zero'], boolean>> = {
  weights: { stage: 3, offload_param: { device: 'cpu' } },
  'weights, none kept': {
    stage: 3,
    offload_param: { device: 'cpu' },
    stage3_max_reuse_distance: 0,
    stage3_param_persistence_threshold: 0,
  },
};

/** One tile per 64 elements, and tiles that end inside parameters. */
const subGroupSizes = [1, 64, 1000];

/** The device keeps the optimizer state. The host keeps the weights, and receives them on load. */
const weightsAlone: Case = {
  name: 'weights offloaded alone: where they are, saved and loaded',
  async run(device) {
    const zero = offloadedWeights['weights, none kept'];
    const options = { precision: 'bf16', zero, offload: false } as const;
    const dir = mkdtempSync(join(tmpdir(), 'ds-host-weights-'));
    try {
      const trained = await tinyEngine(options, device);
      trainTiny(trained, 0, 5);
      const { stage, state } = trained.parts;
      assert.ok(stage.partitions.every(({ weights }) => weights.buffer.pinned));
      assert.equal(state.bytes.host, 0);
      const elements = stage.partitions.reduce((sum, { numel }) => sum + numel, 0);
      assert.ok(state.bytes.device >= 12 * elements, 'masters and moments');
      await trained.saveCheckpoint(dir);
      const expected = trainTiny(trained, 5, 5);
      const resumed = await tinyEngine(options, device);
      trainTiny(resumed, 0, 1);
      await resumed.loadCheckpoint(dir);
      assert.deepEqual(trainTiny(resumed, 5, 5), expected);
      assert.deepEqual(weightBits(resumed), weightBits(trained));
      trained.destroy();
      resumed.destroy();
    } finally {
      rmSync(dir, { recursive: true });
    }
  },
};

/** The bits of master weights, by name. */
function masterBits({ module }: Engine): Map<string, string> {
  const bits = (parameter: nn.Parameter): string => {
    const master = zero.safeGetFullFp32Param(parameter) as Tensor;
    const text = Buffer.from(master.toRaw().buffer).toString('base64');
    master.dispose();
    return text;
  };
  return new Map(Array.from(module.namedParameters(), ([name, one]) => [name, bits(one)]));
}

/**
 * Where split masters are: which state is offloaded, and host bytes per parameter without its
 * gradient.
 */
interface SplitPlace {
  options: Partial<TinyOptions>;
  bytes: number;
}

const inTiles = { sub_group_size: 1000 };

/** Lower halves and their bits, and two moments. */
const LOWER = 2 + 1 / 8 + 8;

const splitPlaces: Record<string, SplitPlace> = {
  'weights in host memory': {
    options: { zero: { ...offloadedWeights['weights, none kept'], ...inTiles } },
    bytes: LOWER + 2,
  },
  'weights in host memory, streamed': {
    options: { zero: { ...offloadedWeights['weights, none kept'], ...inTiles }, gpuShare: 1 },
    bytes: LOWER,
  },
  'weights in host memory, streamed in part': {
    options: { zero: { ...offloadedWeights['weights, none kept'], ...inTiles }, gpuShare: 0.5 },
    bytes: LOWER + 2,
  },
  'weights on the device': { options: { zero: { stage: 2, ...inTiles } }, bytes: LOWER },
  'stage 3': { options: { zero: { stage: 3, ...inTiles } }, bytes: LOWER },
  'streamed in part': { options: { zero: inTiles, gpuShare: 0.5 }, bytes: LOWER },
  streamed: { options: { zero: inTiles, gpuShare: 1 }, bytes: LOWER },
};

/**
 * With split masters, bf16 weights are one half of the master weights. Host memory is lower, all
 * values are equal.
 */
const splitMasters = (place: string, gradients: 'bf16' | 'fp32'): Case => ({
  name: `offload equals resident: masters in halves, ${place}, gradients in ${gradients}`,
  async run(device) {
    device.setDeterministic(true);
    const common = { precision: 'bf16', gradients, clip: 0.5 } as const;
    const { options, bytes } = splitPlaces[place] as SplitPlace;
    const dir = mkdtempSync(join(tmpdir(), 'ds-split-'));
    try {
      const fullEngine = await tinyEngine({ ...common, offload: false }, device);
      const split = await tinyEngine({ ...common, ...options, offload: true }, device);
      const { stage, state } = split.parts;
      const elements = stage.partitions.reduce((sum, { numel }) => sum + numel, 0);
      const ofGradient = options.gpuShare === 1 ? 0 : gradients === 'bf16' ? 2 : 4;
      const tables = 64 * 1024;
      const limit = (bytes + ofGradient) * elements + tables;
      assert.ok(state.bytes.host < limit, `${state.bytes.host / elements}`);
      assert.deepEqual(masterBits(split), masterBits(fullEngine));
      assert.deepEqual(trainTiny(split, 0, 8), trainTiny(fullEngine, 0, 8));
      assert.deepEqual(masterBits(split), masterBits(fullEngine));
      await split.saveCheckpoint(join(dir, 'split'));
      await fullEngine.saveCheckpoint(join(dir, 'whole'));
      const expected = trainTiny(fullEngine, 8, 12);
      // Both engines train on, or train on other data, before they load the other one's state.
      trainTiny(split, 0, 1);
      await split.loadCheckpoint(join(dir, 'whole'));
      await fullEngine.loadCheckpoint(join(dir, 'split'));
      assert.deepEqual(masterBits(split), masterBits(fullEngine));
      assert.deepEqual(trainTiny(split, 8, 12), expected);
      assert.deepEqual(trainTiny(fullEngine, 8, 12), expected);
      for (const engine of [fullEngine, split]) setMasters(engine);
      assert.deepEqual(masterBits(split), masterBits(fullEngine));
      assert.deepEqual(trainTiny(split, 12, 16), trainTiny(fullEngine, 12, 16));
      assert.deepEqual(weightBits(split), weightBits(fullEngine));
      fullEngine.destroy();
      split.destroy();
    } finally {
      rmSync(dir, { recursive: true });
    }
  },
});

/** Trains small parameters and a large one with masters that are written in several parts. */
const largeSplit: Case = {
  name: 'offload equals resident: masters in halves, a parameter of 2.2 million elements',
  async run(device) {
    device.setDeterministic(true);
    const outcomes: unknown[] = [];
    for (const home of ['none', 'cpu'] as const) {
      seed(7);
      const model = new nn.Linear(1483, 1483);
      const config = {
        train_micro_batch_size_per_gpu: 2,
        bf16: { enabled: true },
        gradient_clipping: 1,
        optimizer: { type: 'AdamW' as const, params: { lr: 1e-3 } },
        zero_optimization: {
          stage: 2 as const,
          offload_optimizer: { device: home, super_offload: false, gpu_share: 0 },
        },
      };
      const { engine } = await initialize({ model, config, device });
      const initial = masterBits(engine);
      for (let step = 0; step < 2; ++step) {
        scope(() => {
          const x = Tensor.from(new Float32Array(2 * 1483).fill(step + 1), {
            shape: [2, 1483],
            device,
          });
          engine.backward(engine.forward(x.to('bf16')).to('f32').mean());
        });
        engine.step();
      }
      const trained = masterBits(engine);
      setMasters(engine);
      outcomes.push([initial, trained, masterBits(engine), weightBits(engine)]);
      engine.destroy();
    }
    assert.ok(isDeepStrictEqual(outcomes[1], outcomes[0]), 'masters or weights');
  },
};

/** Sets every other parameter to values half way between two bf16 values, and next to them. */
function setMasters({ module, device }: Engine): void {
  for (const [i, parameter] of [...module.parameters()].entries()) {
    if (i % 2) continue;
    const bits = Uint32Array.from({ length: parameter.numel }, (_, at) => {
      return 0x3c000000 + (at % 64) * 0x8000 + (at % 3) - 1;
    });
    const { shape } = parameter;
    const value = Tensor.from(new Float32Array(bits.buffer), { shape, device }).keep();
    zero.safeSetFullFp32Param(parameter, value);
    value.dispose();
  }
}

export const cases: Case[] = [
  weightsAlone,
  largeSplit,
  ...Object.keys(splitPlaces).flatMap((place) =>
    (['bf16', 'fp32'] as const).map((gradients) => splitMasters(place, gradients)),
  ),
  ...precisions.flatMap((precision) =>
    Object.entries(offloadedWeights).flatMap(([label, zero]) => [
      equalCase(`optimizer and ${label}, ${precision}`, { precision, zero, accumulation: 2 }),
      equalCase(`${label}, ${precision}`, { precision, zero, accumulation: 2, offload: false }),
    ]),
  ),
  equalCase('optimizer and weights, activation checkpointing with dropout', {
    precision: 'bf16',
    zero: offloadedWeights['weights, none kept'],
    checkpointing: true,
    dropout: 0.1,
  }),
  ...precisions.map((precision) => equalCase(`${precision}, clipping`, { precision, clip: 0.5 })),
  equalCase('bf16, no clipping, accumulation 3', { precision: 'bf16', clip: 0, accumulation: 3 }),
  ...(['bf16', 'fp16'] as const).map((precision) =>
    equalCase(`${precision}, gradients summed in fp32, accumulation 3`, {
      precision,
      gradients: 'fp32',
      clip: 0.5,
      accumulation: 3,
    }),
  ),
  equalCase('bf16, activation checkpointing, dropout', {
    precision: 'bf16',
    checkpointing: true,
    dropout: 0.1,
  }),
  ...optimizers.flatMap((options) =>
    [undefined, 1000].map((size) =>
      equalCase(
        `${options.precision}, ${JSON.stringify(options.optimizer)}, sub-groups of ${size ?? 'any size'}`,
        { ...options, zero: { sub_group_size: size } },
      ),
    ),
  ),
  ...subGroupSizes.flatMap((size) =>
    precisions.flatMap((precision, i) => [
      equalCase(`${precision}, clipping, sub-groups of ${size}`, {
        precision,
        clip: 0.5,
        accumulation: i + 1,
        zero: { sub_group_size: size },
      }),
      equalCase(`optimizer and weights, ${precision}, sub-groups of ${size}`, {
        precision,
        zero: { ...offloadedWeights.weights, sub_group_size: size },
      }),
    ]),
  ),
  ...[false, true].map(groupsCase),
  equalCase('bf16, gradients summed in fp32, sub-groups of 1000', {
    precision: 'bf16',
    gradients: 'fp32',
    accumulation: 2,
    zero: { sub_group_size: 1000 },
  }),
];

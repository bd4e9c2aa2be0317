// Tests every place of optimizer state on one rank: the bits are those of an update on the device,
// and the memory breakdown finds the owner of every byte.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Engine } from '../../lib/engine/engine.js';
import { measureMemory } from '../../lib/engine/watch/memory-breakdown.js';
import { addon } from '../../lib/runtime/addon.js';
import { cpu } from '../../lib/runtime/device.js';
import { SwapFile } from '../../lib/runtime/swap-file.js';
import {
  stateBits,
  type TinyOptions,
  tinyEngine,
  trainTiny,
  weightBits,
} from '../e2e/tiny-training.js';
import { quiet } from '../support/quiet.js';

const folder = mkdtempSync(join(tmpdir(), 'ds-states-'));
afterAll(() => rmSync(folder, { recursive: true }));

const saved = join(folder, 'saved');

const device = cpu();
/** Some steps are clipped and some are not, and a unit has several tiles. */
const common = { precision: 'bf16', clip: 1.4, offload: true } as const;
const tiles = { sub_group_size: 4096 };
const weightsIn = (place: 'cpu' | 'nvme'): TinyOptions['zero'] => ({
  ...tiles,
  stage: 3,
  stage3_param_persistence_threshold: 0,
  offload_param: {
    device: place,
    ...(place === 'nvme' ? { nvme_path: folder, max_in_cpu: 0 } : {}),
  },
});

const states: [string, TinyOptions][] = [
  ['state in host memory', common],
  ['speculative updates', { ...common, speculative: true }],
  ['half of the state in host memory', { ...common, ratio: 0.5 }],
  ['updates by both processors', { ...common, gpuShare: 0.5 }],
  ['updates by the device', { ...common, gpuShare: 1 }],
  ['speculative updates by both', { ...common, speculative: true, gpuShare: 0.5 }],
  ['state on disk', { ...common, nvme: folder }],
  ['offloaded weights', { ...common, zero: weightsIn('cpu') }],
  ['offloaded weights, speculative', { ...common, zero: weightsIn('cpu'), speculative: true }],
  ['offloaded weights, device updates', { ...common, zero: weightsIn('cpu'), gpuShare: 1 }],
  [
    'offloaded weights, speculative, by the device',
    { ...common, zero: weightsIn('cpu'), gpuShare: 1, speculative: true },
  ],
  [
    'offloaded weights, speculative, by both',
    { ...common, zero: weightsIn('cpu'), gpuShare: 0.5, speculative: true },
  ],
  ['weights and state on disk', { ...common, nvme: folder, zero: weightsIn('nvme') }],
  ['weights on disk', { ...common, zero: weightsIn('nvme') }],
];

const steps = 8;
const result = (engine: Engine, losses: readonly number[]): unknown => ({
  losses,
  weights: weightBits(engine),
  state: stateBits(engine),
});

let expected: unknown;
beforeAll(async () => {
  device.setDeterministic(true);
  const engine = await tinyEngine({ ...common, offload: false }, device);
  const losses = trainTiny(engine, 0, steps / 2);
  await engine.saveCheckpoint(saved);
  losses.push(...trainTiny(engine, steps / 2, steps));
  expected = result(engine, losses);
  engine.destroy();
});
afterAll(() => device.setDeterministic(false));

test.each(states)('%s: has the bits of an update on the device', async (_, options) => {
  const engine = await tinyEngine({ zero: tiles, ...options }, device);
  expect(result(engine, trainTiny(engine, 0, steps))).toEqual(expected);
  engine.destroy();
});

test.each<[string, TinyOptions]>([
  ['speculative updates', { ...common, speculative: true }],
  ['speculative updates by both', { ...common, speculative: true, gpuShare: 0.5 }],
  ['offloaded weights, speculative', { ...common, zero: weightsIn('cpu'), speculative: true }],
])('%s: a step that overflows f16 changes nothing', async (_, tinyOptions) => {
  // Without clipping, only the flag of the step decision differs from a good step.
  const options = { ...tinyOptions, precision: 'fp16', clip: 0 } as const;
  const run = async (item: TinyOptions): Promise<unknown> => {
    const engine = await tinyEngine(item, device);
    const trained = result(engine, trainTiny(engine, 0, steps));
    const { skippedSteps } = engine;
    engine.destroy();
    expect(skippedSteps).toBeGreaterThan(0);
    expect(skippedSteps).toBeLessThan(steps);
    return trained;
  };
  const { speculative, gpuShare, ...plain } = options;
  expect(await run(options)).toEqual(await run({ ...plain, offload: false, zero: {} }));
});

/** No step is clipped, so the speculation would hold. */
const unclipped = { ...common, clip: 0 } as const;

test.each<[string, TinyOptions]>([
  ['speculative updates', { ...unclipped, speculative: true }],
  ['speculative updates by both', { ...unclipped, speculative: true, gpuShare: 0.5 }],
])('%s: a weight decay that changes after backward acts on this step', async (_, options) => {
  const run = async (tinyOptions: TinyOptions): Promise<unknown> => {
    const engine = await tinyEngine(tinyOptions, device);
    const losses = trainTiny(engine, 0, 2);
    const step = engine.step.bind(engine);
    engine.step = () => {
      const groups = engine.optimizer.groups as { weightDecay: number }[];
      for (const group of groups) group.weightDecay = 0.5;
      step();
    };
    losses.push(...trainTiny(engine, 2, 4));
    const trained = result(engine, losses);
    engine.destroy();
    return trained;
  };
  expect(await run(options)).toEqual(await run({ ...unclipped, offload: false }));
});

test.each(states)(
  '%s: loads a checkpoint that was saved with updates on the device',
  async (_, options) => {
    const { losses, ...trained } = expected as { losses: number[] };
    const engine = await tinyEngine({ zero: tiles, ...options }, device);
    trainTiny(engine, 0, 1);
    await engine.loadCheckpoint(saved);
    const rest = trainTiny(engine, steps / 2, steps);
    expect(result(engine, rest)).toEqual({ ...trained, losses: losses.slice(steps / 2) });
    engine.destroy();
  },
);

const onDevice: [string, TinyOptions][] = [0, 1, 2, 3].map((stage) => [
  `stage ${stage}, state on the device`,
  { ...common, offload: false, zero: { stage: stage as 0 } },
]);

/** Bytes of the model's bf16 weights. The breakdown would be off by them at least. */
const WEIGHTS = 77_312;

test.each([...onDevice, ...states])('%s: every byte of memory has an owner', async (_, options) => {
  await quiet(() => device.memory.inUse);
  const before = device.memory.inUse;
  const engine = await tinyEngine({ zero: tiles, ...options }, device);
  trainTiny(engine, 0, 2);
  engine.synchronize();
  const { other } = measureMemory(engine.parts).device;
  engine.destroy();
  // Counters, control values and the rounding of blocks.
  expect(other - before).toBeGreaterThan(0);
  expect(other - before).toBeLessThan(WEIGHTS);
});

test('f32 weights on the device are their own masters', async () => {
  const engine = await tinyEngine({ precision: 'fp32', offload: false }, device);
  trainTiny(engine, 0, 1);
  const { weights, optimizer } = measureMemory(engine.parts).device;
  engine.destroy();
  // Two moments and a few counters.
  expect(weights).toBe(2 * WEIGHTS);
  expect(optimizer - 2 * weights).toBeLessThan(1024);
});

const cpuWeights: [string, TinyOptions] = [
  'offloaded weights, state on the device',
  { ...common, offload: false, zero: weightsIn('cpu') },
];

test.each([...onDevice, ...states, cpuWeights])(
  '%s: destroy() frees everything except the weights',
  async (_, options) => {
    const calls = (['createStream', 'releaseStream', 'createEvent', 'releaseEvent'] as const).map(
      (name) => jest.spyOn(addon, name),
    );
    await quiet(() => device.memory.inUse);
    const before = device.memory.inUse;
    const engine = await tinyEngine({ zero: tiles, ...options }, device);
    trainTiny(engine, 0, 2);
    engine.destroy();
    const [streams, freedStreams, events, freedEvents] = calls.map(({ mock }) => mock.calls.length);
    expect([freedStreams, freedEvents]).toEqual([streams, events]);
    for (const call of calls) call.mockRestore();
    // The model outlives its engine.
    expect(device.memory.inUse - before).toBeLessThan(WEIGHTS + 1024);
  },
);

test('weights that all stay in memory need no file', async () => {
  const open = jest.spyOn(SwapFile, 'open');
  const zero = weightsIn('nvme') as { offload_param: object };
  const offload_param = { ...zero.offload_param, max_in_cpu: 1e9 };
  const engine = await tinyEngine({ ...common, zero: { ...zero, offload_param } }, device);
  trainTiny(engine, 0, 1);
  engine.destroy();
  expect(open).not.toHaveBeenCalled();
  open.mockRestore();
});

test('a full disk is refused with the size and contents of the file', async () => {
  const open = jest.spyOn(SwapFile, 'open');
  const disk = { ...common, nvme: folder, zero: weightsIn('nvme') };
  const engine = await tinyEngine(disk, device);
  engine.destroy();
  const files = open.mock.calls.map(([{ purpose, bytes }]) => {
    const [gigabytes, rest] = purpose.split(' GB: ');
    expect((Number(gigabytes) * 1e9) / bytes).toBeCloseTo(1, 2);
    const [count = 0, each = 0] = (rest?.match(/\d[\d.,]*/g) ?? []).map((text) =>
      Number(text.replaceAll(',', '')),
    );
    if (rest?.endsWith('each')) expect((count * each) / bytes).toBeCloseTo(1, 1);
    return rest?.replace(/\d[\d.,]*\b/g, 'N');
  });
  open.mockRestore();
  expect(files.sort()).toEqual([
    'N parameters, N bytes of state each',
    'the weights of N parameters',
  ]);
});

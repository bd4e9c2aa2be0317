// Tests that state in host memory, updated by CPU and GPU, has the same bits as state on the
// device.
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { adviseOnMemory } from '../../lib/engine/watch/memory-advice.js';
import type { Engine } from '../../lib/index.js';
import { byteText } from '../../lib/runtime/byte-text.js';
import type { Device } from '../../lib/runtime/device.js';
import { DeferredUpdates, type UpdateGroup } from '../../lib/zero/optimizer-state.js';
import type { Partition } from '../../lib/zero/partition.js';
import { Speculative } from '../../lib/zero/schedule/speculative.js';
import { StreamedState, Windows } from '../../lib/zero/state/placement/streamed.js';
import type { Masters } from '../../lib/zero/state/strategies.js';
import type { Case } from '../support/case.js';
import { stateBits, type TinyOptions, tinyEngine, trainTiny, weightBits } from './tiny-training.js';

const steps = 200;

type Options = Omit<TinyOptions, 'offload' | 'speculative' | 'gpuShare' | 'ratio'>;

/** The result of a run: losses, weights, state, and the number of skipped steps. */
function outcome(engine: Engine, losses: readonly number[]): unknown {
  const { skippedSteps } = engine;
  return { losses, weights: weightBits(engine), state: stateBits(engine), skippedSteps };
}

async function trainResult(options: TinyOptions, device: Device): Promise<unknown> {
  const engine = await tinyEngine(options, device);
  const result = outcome(engine, trainTiny(engine, 0, steps));
  if (options.precision === 'fp16') assert.ok(engine.skippedSteps > 0, 'no overflow was provoked');
  engine.destroy();
  return result;
}

/** Tiles smaller than a unit, so that windows are reused within a unit. */
const inTiles = { sub_group_size: 4096 };

function equalCase(
  label: string,
  options: Options,
  places: readonly Pick<TinyOptions, 'gpuShare' | 'ratio' | 'speculative'>[],
): Case {
  return {
    name: `updates by both processors equal those of one: ${label}, ${steps} steps`,
    async run(device) {
      device.setDeterministic(true);
      const shared = { zero: inTiles, ...options };
      const expected = await trainResult({ ...shared, offload: false }, device);
      for (const place of places) {
        const got = await trainResult({ ...shared, ...place, offload: true }, device);
        assert.deepEqual(got, expected, JSON.stringify(place));
      }
    },
  };
}

const anyway = [
  { speculative: false, gpuShare: 0.46 },
  ...[0.3, 0.46, 1].map((gpuShare) => ({ speculative: true, gpuShare })),
];

const places: Case = {
  name: 'updates by both processors: each has its share of the offloaded state, in units of the whole forward',
  async run(device) {
    const options = { precision: 'bf16', offload: true, gpuShare: 0.5 } as const;
    for (const speculative of [false, true]) {
      const engine = await tinyEngine({ ...options, speculative }, device);
      const { updateGroups } = engine.parts.state;
      assert.deepEqual(
        updateGroups.map(({ state }) => state.names),
        speculative
          ? ['StreamedState, JoinedMasters, DeviceWeights', 'HostState, F32Masters, DeviceWeights']
          : [
              'StreamedState, SplitMasters, DeviceWeights',
              'HostState, SplitMasters, DeviceWeights',
            ],
      );
      const Kind = speculative ? Speculative : DeferredUpdates;
      for (const { schedule } of updateGroups) assert.ok(schedule instanceof Kind);
      engine.destroy();
    }
    for (const speculative of [false, true]) {
      const engine = await tinyEngine({ ...options, speculative, gpuShare: 1 }, device);
      const { state, stage } = engine.parts;
      const elements = stage.partitions.reduce((sum, { numel }) => sum + numel, 0);
      assert.equal(state.updateGroups.length, 1);
      // Two moments and master weights, half of them on the device, without the optimizer's tables.
      const beside = state.bytes.host - (10 + 1 / 8) * elements;
      assert.ok(beside >= 0 && beside < 4096, `${beside} bytes beside the state`);
      engine.destroy();
    }
  },
};

const staying: Case = {
  name: 'updates by both processors: offloaded weights of speculative updates stay on the device',
  async run(device) {
    const zero = { stage: 3, offload_param: { device: 'cpu' } } as const;
    const options = { precision: 'bf16', offload: true, zero } as const;
    for (const [speculative, gpuShare] of [
      [true, 0.5],
      [true, 1],
      [false, 1],
    ] as const) {
      const engine = await tinyEngine({ ...options, speculative, gpuShare }, device);
      for (const steps of [0, 3]) {
        trainTiny(engine, 0, steps);
        const { state, stage } = engine.parts;
        const stays = ({ weights }: Partition): boolean => !weights.buffer.pinned;
        for (const { state: own, schedule, partitions } of state.updateGroups) {
          const { placement } = own;
          const isTheirs = speculative && placement instanceof StreamedState;
          assert.ok(partitions.every((one) => stays(one) === isTheirs));
          if (!isTheirs) continue;
          const elements = partitions.reduce((sum, { numel }) => sum + numel, 0);
          const { masters } = own as unknown as { masters: Masters };
          // Two gradients and upper halves. The weights belong to the partitions.
          const passing = placement.windows.bytes + masters.bytes.device;
          const all = own.bytes.device + (schedule.bytes?.device ?? 0) - passing;
          const beside = all - 6 * elements;
          assert.ok(beside >= 0 && beside < 4096, `${beside} bytes beside ${elements} elements`);
        }
        const weights = stage.partitions.filter(stays).reduce((sum, one) => sum + one.numel, 0);
        const { hint } = adviseOnMemory(engine.parts);
        const frees = state.updateGroups
          .filter((one) => one.state.placement instanceof StreamedState)
          .reduce(
            (sum, one) => sum + one.state.bytes.device + (one.schedule.bytes?.device ?? 0),
            0,
          );
        assert.ok(hint.includes(`gpu_share": 0 frees ${byteText(frees + 2 * weights)}`), hint);
      }
      engine.destroy();
    }
  },
};

const passing: Case = {
  name: 'updates by both processors: after the step decision, gradients of masters in halves are given back',
  async run(device) {
    const options = { precision: 'bf16', offload: true, speculative: false, gpuShare: 1 } as const;
    for (const zero of [{}, { stage: 3, offload_param: { device: 'cpu' } }] as const) {
      const engine = await tinyEngine({ ...options, zero }, device);
      const { state, stage } = engine.parts;
      const elements = stage.partitions.reduce((sum, { numel }) => sum + numel, 0);
      const { state: own } = state.updateGroups[0] as UpdateGroup;
      trainTiny(engine, 0, 2);
      const kept = own.bytes.device - (own.placement as StreamedState).windows.bytes;
      assert.ok(kept < elements, `${kept} bytes beside windows, of ${elements} elements`);
      for (const { grad } of stage.partitions) assert.equal(grad, null);
      engine.destroy();
    }
  },
};

const once: Case = {
  name: 'updates by both processors: while steps are clipped, state crosses once each way a step',
  async run(device) {
    const options = { precision: 'bf16', offload: true, speculative: true, clip: 0.05 } as const;
    const engine = await tinyEngine({ ...options, gpuShare: 0.5, zero: inTiles }, device);
    // Enough steps that speculation stops.
    trainTiny(engine, 0, 12);
    const { state, partitions } = engine.parts.state.updateGroups[0] as UpdateGroup;
    const tiles = partitions.flatMap((partition) => state.partOf(partition).tiles).length;
    const { open } = Windows.prototype;
    let opened = 0;
    Windows.prototype.open = function (...args) {
      opened += 1;
      return open.apply(this, args);
    };
    try {
      trainTiny(engine, 12, 16);
    } finally {
      Windows.prototype.open = open;
    }
    assert.ok(state.placement instanceof StreamedState && tiles > 1);
    assert.equal(opened, 4 * tiles);
    engine.destroy();
  },
};

const advised: Case = {
  name: 'updates by both processors: an out-of-memory error lists the state on the device',
  async run(device) {
    const options = { precision: 'bf16', offload: true, speculative: true } as const;
    for (const gpuShare of [0, 1]) {
      const engine = await tinyEngine({ ...options, gpuShare }, device);
      const { hint } = adviseOnMemory(engine.parts);
      assert.equal(/gpu_share": 0 frees \d/.test(hint), gpuShare > 0, hint);
      engine.destroy();
    }
    // Split masters have their gradients outside the state store.
    const engine = await tinyEngine({ ...options, speculative: false, gpuShare: 1 }, device);
    const { state, stage } = engine.parts;
    trainTiny(engine, 0, 1);
    const { step } = engine;
    engine.step = () => {
      const kept = stage.partitions.reduce((sum, { numel }) => sum + 2 * numel, 0);
      const { bytes } = (state.updateGroups[0] as UpdateGroup).state;
      const { hint } = adviseOnMemory(engine.parts);
      assert.ok(hint.includes(`gpu_share": 0 frees ${byteText(bytes.device + kept)}`), hint);
      step.call(engine);
    };
    trainTiny(engine, 1, 2);
    engine.destroy();
  },
};

const resumed: Case = {
  name: 'updates by both processors: checkpoints equal those of one processor, and load with another share',
  async run(device) {
    device.setDeterministic(true);
    const dir = mkdtempSync(join(tmpdir(), 'ds-gpu-share-'));
    try {
      const options = { precision: 'bf16', clip: 1.4, zero: inTiles } as const;
      const plain = await tinyEngine({ ...options, offload: false }, device);
      const expected = trainTiny(plain, 0, 20);
      const offloaded = { ...options, offload: true, speculative: true } as const;
      const engine = await tinyEngine({ ...offloaded, gpuShare: 0.5 }, device);
      const losses = trainTiny(engine, 0, 10);
      await engine.saveCheckpoint(dir);
      losses.push(...trainTiny(engine, 10, 20));
      assert.deepEqual(losses, expected);
      for (const gpuShare of [0, 0.3, 1]) {
        const other = await tinyEngine({ ...offloaded, gpuShare }, device);
        await other.loadCheckpoint(dir);
        assert.deepEqual(trainTiny(other, 10, 20), expected.slice(10));
        assert.deepEqual(outcome(other, []), outcome(plain, []));
        other.destroy();
      }
      for (const one of [plain, engine]) one.destroy();
    } finally {
      rmSync(dir, { recursive: true, force: true });
    }
  },
};

export const cases: Case[] = [
  equalCase(
    'bf16, clipping sometimes, accumulation 2',
    { precision: 'bf16', clip: 1.4, accumulation: 2 },
    [...anyway, { speculative: true, gpuShare: 0.5, ratio: 0.6 }],
  ),
  equalCase(
    'fp16, overflows, dropout, checkpointing',
    { precision: 'fp16', clip: 1.4, dropout: 0.1, checkpointing: true },
    anyway.slice(0, 3),
  ),
  equalCase('bf16, clipping every step', { precision: 'bf16', clip: 0.05 }, anyway.slice(2, 3)),
  equalCase(
    'fp32, stage 3, weights in host memory',
    { precision: 'fp32', zero: { ...inTiles, stage: 3, offload_param: { device: 'cpu' } } },
    [{ gpuShare: 0.5 }],
  ),
  equalCase(
    'bf16, stage 3, weights in host memory',
    {
      precision: 'bf16',
      clip: 1.4,
      accumulation: 2,
      zero: { ...inTiles, stage: 3, offload_param: { device: 'cpu' } },
    },
    [
      { speculative: false, gpuShare: 0.5 },
      { speculative: true, gpuShare: 0.5 },
      { speculative: true, gpuShare: 1 },
    ],
  ),
  equalCase(
    'fp16, stage 3, weights in host memory',
    {
      precision: 'fp16',
      clip: 1.4,
      zero: { ...inTiles, stage: 3, offload_param: { device: 'cpu' } },
    },
    [{ speculative: true, gpuShare: 0.5 }],
  ),
  places,
  staying,
  passing,
  once,
  advised,
  resumed,
];

// A share of the optimizer on the device, the rest offloaded: the same bits as with all of it in
// one place.
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Engine } from '../../lib/index.js';
import type { Device } from '../../lib/runtime/device.js';
import type { Case } from '../support/case.js';
import { type TinyOptions, tinyEngine, trainTiny, weightBits } from './tiny-training.js';

const steps = 30;

type Options = Omit<TinyOptions, 'offload'>;

const resident = (options: Options, device: Device): Promise<Engine> =>
  tinyEngine({ ...options, offload: false, speculative: false }, device);

const split = (options: Options, device: Device): Promise<Engine> =>
  tinyEngine({ ratio: 0.5, ...options, offload: true }, device);

const statesOf = (engine: Engine): string[] =>
  engine.parts.state.updateGroups.map(({ state }) => state.names);

const onDevice = 'DeviceState, F32Masters, DeviceWeights';
const onHost = 'HostState, F32Masters, DeviceWeights';

function equalCase(label: string, options: Options): Case {
  return {
    name: `partial offload equals resident: ${label}, ${steps} steps`,
    async run(device) {
      device.setDeterministic(true);
      const plain = await resident(options, device);
      const expected = trainTiny(plain, 0, steps);
      const engine = await split(options, device);
      const areSplit = options.precision === 'bf16' && !options.speculative;
      const inHalves = 'HostState, SplitMasters, DeviceWeights';
      assert.deepEqual(statesOf(engine), [onDevice, areSplit ? inHalves : onHost]);
      assert.deepEqual(trainTiny(engine, 0, steps), expected);
      assert.deepEqual(weightBits(engine), weightBits(plain));
      assert.equal(engine.skippedSteps, plain.skippedSteps);
      if (options.precision === 'fp16')
        assert.ok(plain.skippedSteps > 0, 'no overflow was provoked');
      plain.destroy();
      engine.destroy();
    },
  };
}

const shares: Case = {
  name: 'partial offload: the first units in forward order stay on the device, at most 1 - ratio of all elements',
  async run(device) {
    const options = { precision: 'bf16', speculative: true } as const;
    const fullEngine = await tinyEngine({ ...options, offload: true }, device);
    const { partitions } = fullEngine.parts.stage;
    const sizes = partitions.map(({ numel }) => numel);
    const total = sizes.reduce((sum, numel) => sum + numel, 0);
    assert.deepEqual(statesOf(fullEngine), [onHost]);
    const host = fullEngine.parts.state.bytes.host / total;
    fullEngine.destroy();
    let first = 0;
    for (const numel of [...sizes, 0]) {
      // Enough for the units so far and one element.
      const ratio = 1 - Math.min((first + 1) / total, 1);
      const engine = await split({ ...options, ratio }, device);
      const { bytes } = engine.parts.state;
      // A few bytes more are the optimizer's tables.
      assert.ok(Math.abs(bytes.device - 12 * first) < 256, `device ${bytes.device}`);
      assert.ok(Math.abs(bytes.host - host * (total - first)) < 256, `host ${bytes.host}`);
      engine.destroy();
      first += numel;
    }
    assert.equal(first, total);
  },
};

const resumed: Case = {
  name: 'partial offload: checkpoints are the same as without, and load with another share',
  async run(device) {
    device.setDeterministic(true);
    const dir = mkdtempSync(join(tmpdir(), 'ds-partial-'));
    try {
      const options = { precision: 'bf16', clip: 1.4 } as const;
      const plain = await resident(options, device);
      const expected = trainTiny(plain, 0, 20);
      const engine = await split({ ...options, speculative: true }, device);
      const losses = trainTiny(engine, 0, 10);
      await engine.saveCheckpoint(dir);
      losses.push(...trainTiny(engine, 10, 20));
      assert.deepEqual(losses, expected);
      for (const ratio of [0, 0.8, 1]) {
        const other = await split({ ...options, ratio }, device);
        await other.loadCheckpoint(dir);
        assert.deepEqual(trainTiny(other, 10, 20), expected.slice(10));
        assert.deepEqual(weightBits(other), weightBits(plain));
        other.destroy();
      }
      assert.deepEqual(statesOf(plain), [onDevice]);
      for (const one of [plain, engine]) one.destroy();
    } finally {
      rmSync(dir, { recursive: true, force: true });
    }
  },
};

export const cases: Case[] = [
  ...(['fp32', 'bf16', 'fp16'] as const).flatMap((precision) =>
    [false, true].map((speculative) =>
      equalCase(`${precision}${speculative ? ', speculative' : ''}`, {
        precision,
        speculative,
        clip: 1.4,
      }),
    ),
  ),
  equalCase('bf16, accumulation 3, stage 3, a third offloaded', {
    precision: 'bf16',
    accumulation: 3,
    ratio: 0.33,
    zero: { stage: 3 },
  }),
  equalCase('fp32, dropout, checkpointing', {
    precision: 'fp32',
    checkpointing: true,
    dropout: 0.1,
    ratio: 0.6,
  }),
  shares,
  resumed,
];

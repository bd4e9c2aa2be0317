// Tests that weights on disk equal weights in memory bit for bit, for every place of the optimizer
// state.
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { PART_BYTES } from '../../lib/checkpoint/shard.js';
import { type DsConfig, type Engine, initialize, nn, zero } from '../../lib/index.js';
import type { Device } from '../../lib/runtime/device.js';
import { seed } from '../../lib/tensor/index.js';
import type { Case } from '../support/case.js';
import { quiet } from '../support/quiet.js';
import { assertSame, type Run, runOf, withFolder } from './nvme.cases.js';
import {
  type TinyOptions,
  tinyConfig,
  tinyEngine,
  tinyModel,
  tinyShape,
  trainTiny,
} from './tiny-training.js';

type ZeroSection = Exclude<NonNullable<DsConfig['zero_optimization']>, boolean>;
type OffloadParam = Exclude<NonNullable<ZeroSection['offload_param']>, string>;

/** No weights stay in memory between uses: every use of a unit reads it. */
const nothingKept = {
  stage3_prefetch_bucket_size: 0,
  stage3_max_reuse_distance: 0,
  stage3_max_live_parameters: 0,
  stage3_param_persistence_threshold: 0,
};

/** A tiny unit has a few thousand elements. */
const onDisk = (nvme: string, more: OffloadParam = {}): ZeroSection => ({
  stage: 3,
  sub_group_size: 1000,
  ...nothingKept,
  offload_param: { device: 'nvme', nvme_path: nvme, max_in_cpu: 0, buffer_size: 3000, ...more },
});

/** Bytes of the engine's weights in host memory and on disk. */
function placesOf(engine: Engine): { host: number; disk: number } {
  const sum = { host: 0, disk: 0 };
  for (const { storage } of engine.parts.stage.partitions) {
    sum.host += storage.bytes.host;
    sum.disk += storage.bytes.disk;
  }
  return sum;
}

const homes = {
  'the device': { offload: false },
  'host memory': { offload: true },
  'both processors': { offload: true, gpuShare: 0.5 },
  'a disk': { offload: true, disk: { offload: { buffer_count: 3 } } },
} satisfies Record<string, Partial<TinyOptions>>;

const homeCase = (
  home: keyof typeof homes,
  options: Omit<TinyOptions, 'offload' | 'zero'>,
  { steps = 12, param = {} }: { steps?: number; param?: OffloadParam } = {},
): Case => ({
  name: `weights on disk, state on ${home}: ${labelOf(options, param)}, ${steps} steps`,
  run: (device) =>
    withFolder(async (nvme) => {
      device.setDeterministic(true);
      // With Muon, the host computes the products if the state is not on the device; they round
      // differently.
      const offload = options.optimizer?.type === 'Muon';
      const resident = await tinyEngine({ ...options, offload, zero: { stage: 1 } }, device);
      const expected = runOf(resident, steps);
      resident.destroy();
      const place = home === 'a disk' ? { nvme } : {};
      const zero = onDisk(nvme, param);
      const engine = await tinyEngine({ ...options, ...homes[home], ...place, zero }, device);
      const { host, disk } = placesOf(engine);
      assert.ok(disk > 0, 'no weights on the disk');
      assert.equal(host > 0, (param.max_in_cpu ?? 0) > 0);
      assertSame(runOf(engine, steps), expected, home);
      engine.destroy();
    }),
});

function labelOf(
  { precision, ...rest }: Pick<TinyOptions, 'precision'>,
  param: OffloadParam,
): string {
  return [precision, ...Object.keys({ ...rest, ...param })].join(', ');
}

/**
 * 100 steps of fp16 with accumulation, dropout and recomputation, some clipped, some overflowing.
 */
const longRun: Case = homeCase(
  'host memory',
  { precision: 'fp16', clip: 1.2, accumulation: 2, dropout: 0.1, checkpointing: true },
  { steps: 100 },
);

/** Memory holds max_in_cpu elements. If the weights fit, the disk holds nothing. */
const memoryFirst: Case = {
  name: 'weights on disk: max_in_cpu elements stay in host memory, all where they fit',
  run: (device) =>
    withFolder(async (nvme) => {
      for (const max of [0, 5000, 20_000, 1e9]) {
        const zero = onDisk(nvme, { max_in_cpu: max });
        const engine = await tinyEngine({ precision: 'bf16', offload: true, zero }, device);
        const { host, disk } = placesOf(engine);
        assert.ok(host <= 2 * max, `${host} bytes for ${max} elements`);
        const sizes = engine.parts.stage.partitions.map(({ numel }) => numel);
        const total = sizes.reduce((a, b) => a + b, 0);
        if (max >= total) assert.deepEqual({ host, disk }, { host: 2 * total, disk: 0 });
        else assert.ok(host + Math.max(...sizes) * 2 > 2 * max || disk === 0, `${host} of ${max}`);
        engine.destroy();
      }
    }),
};

/** A checkpoint equals one of weights in memory, and loads with weights in either place. */
const checkpoints: Case = {
  name: 'weights on disk: checkpoints are the same as without, and load on either side',
  run: (device) =>
    withFolder(async (nvme) => {
      device.setDeterministic(true);
      const dir = mkdtempSync(join(tmpdir(), 'ds-weights-saved-'));
      const options = { precision: 'bf16', clip: 1.4, offload: true } as const;
      const there = { ...options, nvme, zero: onDisk(nvme, { buffer_count: 2 }) };
      try {
        const plain = await tinyEngine({ ...options, zero: { stage: 2 } }, device);
        const expected = trainTiny(plain, 0, 14);
        const engine = await tinyEngine(there, device);
        const losses = trainTiny(engine, 0, 6);
        await engine.saveCheckpoint(dir, { tag: 'disk' });
        await engine.saveCheckpoint(dir, { tag: 'beside', asynchronous: true });
        losses.push(...trainTiny(engine, 6, 8));
        await engine.checkpointDone();
        assert.deepEqual(losses, expected.slice(0, 8));
        for (const tag of ['disk', 'beside']) {
          const resident = await tinyEngine({ ...options, offload: false }, device);
          await resident.loadCheckpoint(dir, { tag });
          assert.deepEqual(trainTiny(resident, 6, 10), expected.slice(6, 10), tag);
          await resident.saveCheckpoint(dir, { tag: 'resident' });
          resident.destroy();
          trainTiny(engine, 8, 9); // Earlier training does not affect the loaded state.
          await engine.loadCheckpoint(dir, { tag: 'resident' });
          assert.deepEqual(trainTiny(engine, 10, 14), expected.slice(10), tag);
          assertSame(runOf(engine, 0), runOf(plain, 0), tag);
        }
        for (const one of [plain, engine]) one.destroy();
      } finally {
        rmSync(dir, { recursive: true, force: true });
      }
    }),
};

/**
 * Bytes of a model with 6 million parameters in one matrix; no single block of memory holds its
 * state.
 */
const wide = { vocabSize: tinyShape.vocabulary, channels: 36, maxSeq: 170_000 };

/** Save and load hold only a few parts of the state in memory at a time. */
const withoutCopies: Case = {
  name: 'weights and state on disk: saving and loading take no copy of them all',
  run: (device) =>
    withFolder(async (nvme) => {
      const dir = mkdtempSync(join(tmpdir(), 'ds-weights-peak-'));
      try {
        const home = { offload: true, nvme, disk: { offload: { buffer_count: 2 } } };
        const zero = { ...onDisk(nvme, { buffer_size: 500_000 }), sub_group_size: 500_000 };
        const options: TinyOptions = { precision: 'bf16', ...home, zero, model: wide };
        const engine = await tinyEngine(options, device);
        trainTiny(engine, 0, 1);
        engine.synchronize();
        const { numel } = engine.parts.stage.partitions.reduce((a, b) =>
          a.numel > b.numel ? a : b,
        );
        assert.ok(numel * 14 > 4 * PART_BYTES, `${numel} elements`);
        const peakDuring = async (body: () => Promise<unknown>): Promise<number> => {
          await quiet(() => device.memory.inUse);
          device.resetPeaks();
          const { inUse } = device.memory;
          await body();
          return device.memory.peakInUse - inUse;
        };
        const pinnedHere = device.kind === 'cpu';
        const saved = await peakDuring(() => engine.saveCheckpoint(dir));
        const loaded = await peakDuring(() => engine.loadCheckpoint(dir));
        const limit = 2.5 * PART_BYTES;
        assert.ok(!pinnedHere || saved < limit, `${saved} bytes to save`);
        assert.ok(!pinnedHere || loaded < limit, `${loaded} bytes to load`);
        engine.destroy();
      } finally {
        rmSync(dir, { recursive: true, force: true });
      }
    }),
};

/** Frozen layers have no optimizer state, but can be read, set from outside, saved and loaded. */
const frozen: Case = {
  name: 'weights on disk: frozen layers come and go, and keep what is written to them',
  run: (device) =>
    withFolder(async (nvme) => {
      device.setDeterministic(true);
      const dir = mkdtempSync(join(tmpdir(), 'ds-weights-frozen-'));
      try {
        const runs: Run[] = [];
        for (const section of [{ stage: 1 } as const, onDisk(nvme)]) {
          const engine = await frozenEngine(section, device);
          const losses = trainTiny(engine, 0, 3);
          const still = engine.module.parameters().find((parameter) => !parameter.requiresGrad);
          zero.GatheredParameters(still as nn.Parameter, { modifierRank: 0 }, () =>
            nn.init.constant(0.02)(still as nn.Parameter),
          );
          losses.push(...trainTiny(engine, 3, 5));
          const tag = `${section.stage}`;
          await engine.saveCheckpoint(dir, { tag });
          losses.push(...trainTiny(engine, 5, 7));
          await engine.loadCheckpoint(dir, { tag: '1' });
          losses.push(...trainTiny(engine, 5, 7));
          assert.deepEqual(losses.slice(7), losses.slice(5, 7));
          runs.push({ ...runOf(engine, 0), losses });
          engine.destroy();
        }
        assertSame(runs[1] as Run, runs[0] as Run, 'frozen');
      } finally {
        rmSync(dir, { recursive: true, force: true });
      }
    }),
};

async function frozenEngine(section: ZeroSection, device: Device): Promise<Engine> {
  seed(1234);
  const model = tinyModel();
  for (const [name, parameter] of model.namedParameters()) {
    if (/\b0\b/.test(name)) parameter.requiresGrad = false;
  }
  const config = tinyConfig({ precision: 'bf16', offload: false, zero: section });
  return (await initialize({ model, config, device })).engine;
}

export const cases: Case[] = [
  longRun,
  memoryFirst,
  checkpoints,
  withoutCopies,
  frozen,
  homeCase('host memory', { precision: 'fp32' }),
  homeCase('host memory', { precision: 'bf16', gradients: 'fp32' }, { param: { buffer_count: 1 } }),
  homeCase('the device', { precision: 'bf16', checkpointing: true }),
  homeCase('both processors', { precision: 'bf16', clip: 1.4 }),
  homeCase('both processors', { precision: 'fp32' }, { param: { max_in_cpu: 9000 } }),
  homeCase('the device', { precision: 'fp32' }, { param: { max_in_cpu: 9000 } }),
  homeCase('a disk', { precision: 'bf16', clip: 1.4 }, { param: { max_in_cpu: 9000 } }),
  homeCase('a disk', { precision: 'fp32', accumulation: 2 }),
  homeCase('a disk', { precision: 'bf16', optimizer: { type: 'Lamb', params: {} } }),
  homeCase('host memory', { precision: 'bf16', optimizer: { type: 'Muon', params: {} } }),
];

// Tests that optimizer state on disk equals state in memory: losses, weights and moments, bit for
// bit.
import assert from 'node:assert/strict';
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type Engine, scope, Tensor, zero } from '../../lib/index.js';
import type { Device } from '../../lib/runtime/device.js';
import { NvmeState } from '../../lib/zero/state/placement/nvme.js';
import type { Case } from '../support/case.js';
import { type TinyOptions, tinyEngine, trainTiny, weightBits } from './tiny-training.js';

type Options = Omit<TinyOptions, 'offload' | 'nvme'>;

/** Runs `body` with a new folder, which must be empty at the end. */
export async function withFolder(body: (folder: string) => Promise<void>): Promise<void> {
  const folder = mkdtempSync(join(tmpdir(), 'ds-nvme-'));
  try {
    await body(folder);
    assert.equal(readdirSync(folder).length, 0);
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

const onDisk = (options: Options, nvme: string, device: Device): Promise<Engine> =>
  tinyEngine({ ...options, offload: true, nvme }, device);

export const diskOf = (engine: Engine): NvmeState =>
  engine.parts.state.updateGroups
    .map(({ state }) => state.placement)
    .find((placement) => placement instanceof NvmeState) as NvmeState;

/** Bits of master weights and all state of every parameter. */
function stateBits(engine: Engine): Map<string, string> {
  const bits = new Map<string, string>();
  const { state, stage } = engine.parts;
  for (const partition of stage.partitions) {
    for (const fragment of partition.fragments) {
      for (const name of ['master', ...Object.keys(declaredState(engine, fragment.entry))]) {
        const lent = state.lend(partition, fragment, name);
        lent.wait();
        const bytes = Buffer.alloc(lent.tensor.bytes);
        lent.tensor.buffer.read(
          lent.tensor.offset * (lent.tensor.bytes / lent.tensor.numel),
          bytes,
        );
        bits.set(`${fragment.entry.name} ${name}`, bytes.toString('base64'));
        lent.tensor.release();
      }
    }
  }
  return bits;
}

function declaredState(
  engine: Engine,
  { group, shape }: { group: number; shape: readonly number[] },
) {
  return engine.parts.optimizer.declareState(group, shape);
}

export interface Run {
  losses: number[];
  weights: Map<string, string>;
  state: Map<string, string>;
  skipped: number;
}

/** Trains and returns losses and bits of the state; `norms` receives the norm of each step. */
export function runOf(engine: Engine, steps: number, norms: number[] = []): Run {
  const losses: number[] = [];
  for (let step = 0; step < steps; ++step) {
    losses.push(...trainTiny(engine, step, step + 1));
    norms.push(engine.getGlobalGradNorm() ?? Number.NaN);
  }
  const run = { losses, weights: weightBits(engine), state: stateBits(engine) };
  return { ...run, skipped: engine.skippedSteps };
}

export function assertSame(run: Run, expected: Run, label: string): void {
  assert.deepEqual(run.losses, expected.losses, label);
  for (const kind of ['weights', 'state'] as const) {
    for (const [name, bits] of run[kind])
      assert.equal(bits, expected[kind].get(name), `${label}: ${name}`);
  }
  assert.equal(run.skipped, expected.skipped, label);
}

const equalCase = (label: string, options: Options, steps = 12): Case => ({
  name: `state on disk equals resident: ${label}, ${steps} steps`,
  run: (device) =>
    withFolder(async (folder) => {
      device.setDeterministic(true);
      // With Muon, the host computes the products if the state is not on the device; they round
      // differently.
      const isMuon = options.optimizer?.type === 'Muon';
      const resident = await tinyEngine(
        { ...options, offload: isMuon, zero: { stage: 1, ...withoutParam(options.zero) } },
        device,
      );
      const expected = runOf(resident, steps);
      const engine = await onDisk(options, folder, device);
      const run = runOf(engine, steps);
      assertSame(run, expected, label);
      const { bytesRead, bytesWritten } = diskOf(engine).disk;
      assert.ok(bytesRead > 0 && bytesWritten > 0, `read ${bytesRead}, written ${bytesWritten}`);
      resident.destroy();
      engine.destroy();
    }),
});

export const withoutParam = (zero: Options['zero']) => {
  const { offload_param: _, ...rest } = typeof zero === 'object' ? zero : {};
  return rest;
};

/** A tiny unit has more tiles than there are slots. */
const small = { sub_group_size: 1000 };
const offloadedWeights = { stage: 3, offload_param: { device: 'cpu' } } as const;

/**
 * Every place of the state, from the same start: losses of 200 steps, some clipped, some
 * overflowing.
 */
const everywhere: Case = {
  name: 'state on disk, in host memory, on the device, and shares of it: 200 steps of fp16 with accumulation, dropout, clipping and overflow',
  run: (device) =>
    withFolder(async (nvme) => {
      device.setDeterministic(true);
      const options = { precision: 'fp16', clip: 1.2, accumulation: 2, dropout: 0.1 } as const;
      const homes: Record<string, Omit<TinyOptions, 'precision'>> = {
        'host memory': { offload: true, zero: small },
        'host memory and device': { offload: true, ratio: 0.5, zero: small },
        disk: { offload: true, nvme, zero: small },
        'disk and device': { offload: true, nvme, ratio: 0.5, zero: small },
      };
      const norms: number[] = [];
      const resident = await tinyEngine({ ...options, offload: false }, device);
      const expected = runOf(resident, 200, norms);
      assert.ok(resident.skippedSteps > 0, 'no overflow was provoked');
      const clipped = norms.filter((norm) => norm > options.clip).length;
      assert.ok(clipped > 0 && clipped < norms.length, `${clipped} of ${norms.length} clipped`);
      resident.destroy();
      for (const [label, home] of Object.entries(homes)) {
        const engine = await tinyEngine({ ...options, ...home }, device);
        assertSame(runOf(engine, 200), expected, label);
        engine.destroy();
      }
    }),
};

/**
 * A checkpoint from one place of the state loads into another, and training continues as without
 * it.
 */
const checkpoints: Case = {
  name: 'state on disk: checkpoints are the same as without, whole and in parts, and load on either side',
  run: (device) =>
    withFolder(async (nvme) => {
      device.setDeterministic(true);
      const dir = mkdtempSync(join(tmpdir(), 'ds-nvme-saved-'));
      try {
        const options = { precision: 'bf16', clip: 1.4, zero: small } as const;
        const plain = await tinyEngine({ ...options, offload: true }, device);
        const expected = trainTiny(plain, 0, 20);
        const engine = await onDisk(options, nvme, device);
        const losses = trainTiny(engine, 0, 10);
        await engine.saveCheckpoint(dir, { tag: 'disk' });
        await engine.saveCheckpoint(dir, { tag: 'beside', asynchronous: true });
        losses.push(...trainTiny(engine, 10, 20));
        assert.deepEqual(losses, expected);
        await engine.checkpointDone();
        for (const tag of ['disk', 'beside']) {
          const resident = await tinyEngine({ ...options, offload: false }, device);
          await resident.loadCheckpoint(dir, { tag });
          assert.deepEqual(trainTiny(resident, 10, 12), expected.slice(10, 12), tag);
          await resident.saveCheckpoint(dir, { tag: 'resident' });
          const other = await onDisk({ ...options, zero: { sub_group_size: 640 } }, nvme, device);
          trainTiny(other, 0, 1); // Earlier training does not affect the loaded state.
          await other.loadCheckpoint(dir, { tag: 'resident' });
          assert.deepEqual(trainTiny(other, 12, 20), expected.slice(12), tag);
          assertSame(runOf(other, 0), runOf(plain, 0), tag);
          for (const one of [resident, other]) one.destroy();
        }
        for (const one of [plain, engine]) one.destroy();
      } finally {
        rmSync(dir, { recursive: true, force: true });
      }
    }),
};

/** A ratio of 0, which leaves no state on disk. */
const nothing: Case = {
  name: 'a ratio of 0 puts no state on disk',
  run: (device) =>
    withFolder(async (nvme) => {
      device.setDeterministic(true);
      const options = { precision: 'bf16', zero: small } as const;
      const resident = await tinyEngine({ ...options, offload: false }, device);
      const engine = await tinyEngine({ ...options, offload: true, nvme, ratio: 0 }, device);
      assert.equal(engine.parts.state.bytes.disk, 0);
      assertSame(runOf(engine, 3), runOf(resident, 3), 'ratio 0');
      for (const one of [resident, engine]) one.destroy();
    }),
};

/** Reads and writes of state by users go to the disk. */
const setFromOutside: Case = {
  name: 'state on disk: values that users set act as in memory',
  run: (device) =>
    withFolder(async (nvme) => {
      device.setDeterministic(true);
      const runs: Run[] = [];
      for (const home of [{ offload: false }, { offload: true, nvme }]) {
        const engine = await tinyEngine({ precision: 'bf16', zero: small, ...home }, device);
        trainTiny(engine, 0, 3);
        for (const parameter of engine.module.parameters().slice(0, 3)) {
          const values = (factor: number) =>
            Float32Array.from({ length: parameter.numel }, (_, i) => factor * ((i % 13) - 6));
          const set = (factor: number) =>
            Tensor.from(values(factor), { shape: parameter.shape, device: engine.device });
          scope(() => {
            zero.safeSetFullFp32Param(parameter, set(0.01));
            zero.safeSetFullOptimizerState(parameter, set(0.002), 'exp_avg');
            const read = zero.safeGetFullOptimizerState(parameter, 'exp_avg') as Tensor;
            assert.deepEqual(read.reshape([-1]).toArray(), Array.from(values(0.002)));
          });
        }
        trainTiny(engine, 3, 6);
        runs.push(runOf(engine, 0));
        engine.destroy();
      }
      assertSame(runs[1] as Run, runs[0] as Run, 'set from outside');
    }),
};

const optimizers: Pick<TinyOptions, 'precision' | 'optimizer' | 'lr'>[] = [
  { precision: 'bf16', optimizer: { type: 'SGD', params: { lr: 0.1, momentum: 0.9 } }, lr: 0.1 },
  {
    precision: 'fp32',
    optimizer: { type: 'Adagrad', params: { initial_accumulator_value: 1e-4 } },
    lr: 0.02,
  },
  { precision: 'fp16', optimizer: { type: 'Lion', params: {} } },
  { precision: 'fp32', optimizer: { type: 'Lamb', params: {} } },
  { precision: 'bf16', optimizer: { type: 'Lamb', params: {} } },
  { precision: 'fp32', optimizer: { type: 'Muon', params: {} } },
  { precision: 'bf16', optimizer: { type: 'Muon', params: {} } },
  { precision: 'bf16', optimizer: { type: 'Adafactor', params: {} } },
];

/** Fewer slots than units. */
const twoSlots = { offload: { buffer_count: 2 } };

/** How the engine uses slots, and how few it has. */
const uses: Record<string, Options['disk']> = {
  'one slot': { offload: { buffer_count: 1 } },
  'two slots, nothing ahead, nothing behind': {
    offload: { buffer_count: 2, pipeline_read: false, pipeline_write: false },
  },
  'more slots than tiles': { offload: { buffer_count: 40 } },
  'blocks of a page, one at a time, three checkers': {
    aio: { block_size: 1, queue_depth: 1, intra_op_parallelism: 3 },
  },
};

export const cases: Case[] = [
  ...(['fp32', 'bf16', 'fp16'] as const).map((precision) =>
    equalCase(precision, { precision, clip: 1.4, zero: small }),
  ),
  everywhere,
  checkpoints,
  setFromOutside,
  nothing,
  equalCase('units as they are', { precision: 'bf16', accumulation: 2, disk: twoSlots }),
  equalCase('bf16, gradients summed in fp32, accumulation 2', {
    precision: 'bf16',
    gradients: 'fp32',
    accumulation: 2,
    zero: small,
  }),
  ...([2, 3] as const).map((stage) =>
    equalCase(`stage ${stage}`, { precision: 'bf16', zero: { ...small, stage } }),
  ),
  ...(['fp32', 'bf16'] as const).map((precision) =>
    equalCase(`weights in host memory, ${precision}, checkpointing, dropout`, {
      precision,
      checkpointing: true,
      dropout: 0.1,
      zero: { ...small, ...offloadedWeights },
    }),
  ),
  ...optimizers.map((options) =>
    equalCase(`${options.precision}, ${options.optimizer?.type}`, {
      ...options,
      zero: small,
      disk: twoSlots,
    }),
  ),
  ...Object.entries(uses).map(([label, disk]) =>
    equalCase(label, { precision: 'bf16', zero: small, disk }),
  ),
];

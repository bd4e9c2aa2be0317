// Tests data_types: gradients accumulated in fp32 against a sum in f64, their bytes, overflows, and
// the dtype of buffers.
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type Engine, initialize, nn, scope, seed, Tensor } from '../../lib/index.js';
import type { Device } from '../../lib/runtime/device.js';
import { sliceFragment } from '../../lib/zero/partition.js';
import type { Case } from '../support/case.js';
import {
  type Precision,
  type TinyOptions,
  tinyBatch,
  tinyConfig,
  tinyEngine,
  tinyModel,
  trainTiny,
  weightBits,
} from './tiny-training.js';

const ACCUMULATION = 8;
const RATE = 1000;

/**
 * An SGD engine for one step that moves weights by almost the gradient: no clipping, no schedule, a
 * fixed loss scale.
 */
async function sgdEngine(device: Device, options: TinyOptions): Promise<Engine> {
  device.setDeterministic(true);
  seed(1234);
  const config = {
    ...tinyConfig({ ...options, clip: 0, accumulation: ACCUMULATION }),
    ...(options.precision === 'fp16' ? { fp16: { enabled: true, loss_scale: 1024 } } : {}),
    optimizer: { type: 'SGD' as const, params: { lr: RATE } },
    scheduler: null,
  };
  return (await initialize({ model: tinyModel(), config, device })).engine;
}

function backward(engine: Engine, index: number): void {
  const { tokens, targets } = tinyBatch(index, engine.device);
  engine.backward(engine.forward<Tensor>(tokens, targets));
  tokens.dispose();
  targets.dispose();
}

/** Gradients, or master weights, of all units, concatenated. */
function values(engine: Engine, of: 'gradient' | 'master'): Float64Array {
  engine.synchronize();
  const { stage, state } = engine.parts;
  const all = stage.partitions.flatMap((partition) =>
    partition.fragments.flatMap((fragment) => {
      const { unit } = partition;
      const flat = of === 'gradient' ? unit.gradient.take() : null;
      const part = flat
        ? sliceFragment(flat, fragment)
        : state.lend(partition, fragment, 'master').tensor;
      const numbers = scope(() => [part.to('f32').reshape([fragment.numel]).toArray() as number[]]);
      part.release();
      flat?.release();
      return numbers.flat();
    }),
  );
  return Float64Array.from(all);
}

/** |a - b| / |b|, in the Euclidean norm. */
function distance(a: Float64Array, b: Float64Array): number {
  const squares = (of: (i: number) => number): number =>
    b.reduce((sum, _, i) => sum + of(i) ** 2, 0);
  return Math.sqrt(
    squares((i) => (a[i] as number) - (b[i] as number)) / squares((i) => b[i] as number),
  );
}

/** Sums the gradients of the micro-batches in f64, without the loss scale. */
async function oracle(device: Device, precision: Precision): Promise<Float64Array> {
  const engine = await sgdEngine(device, { precision, offload: false });
  let sum: Float64Array | null = null;
  for (let index = 0; index < ACCUMULATION; ++index) {
    engine.noSync(() => backward(engine, index));
    const part = values(engine, 'gradient');
    sum = sum ? sum.map((x, i) => x + (part[i] as number)) : part;
    engine.zeroGrad();
  }
  const { lossScale } = engine;
  engine.destroy();
  return (sum as Float64Array).map((x) => x / lossScale);
}

/** Relative errors of a step's gradient norm and new master weights, against the exact sum. */
async function stepErrors(
  device: Device,
  options: TinyOptions,
  exact: Float64Array,
): Promise<{ norm: number; masters: number }> {
  const engine = await sgdEngine(device, options);
  const before = values(engine, 'master');
  for (let index = 0; index < ACCUMULATION; ++index) {
    backward(engine, index);
    engine.step();
  }
  const after = values(engine, 'master');
  const norm = engine.getGlobalGradNorm() as number;
  engine.destroy();
  const expected = before.map((p, i) => p - RATE * (exact[i] as number));
  return { norm: Math.abs(norm / Math.hypot(...exact) - 1), masters: distance(after, expected) };
}

/**
 * A step with f32 sums equals the exact sum. A step with 16-bit sums must differ, or the test shows
 * nothing.
 */
const exactSums =
  (precision: Precision) =>
  async (device: Device): Promise<void> => {
    const exact = await oracle(device, precision);
    for (const offload of [false, true]) {
      const wide = { precision, gradients: 'fp32' as const, offload };
      const { norm, masters } = await stepErrors(device, wide, exact);
      assert.ok(norm < 1e-6 && masters < 1e-6, `offload ${offload}: ${norm}, ${masters}`);
    }
    const narrow = await stepErrors(device, { precision, offload: false }, exact);
    assert.ok(narrow.masters > 1e-4, `${narrow.masters}`);
  };

/**
 * Between micro-batches a unit holds 4 bytes per element instead of 2, and parameters hold no
 * gradient.
 */
async function bytes(device: Device): Promise<void> {
  for (const gradients of ['bf16', 'fp32'] as const) {
    const options = { precision: 'bf16' as const, offload: false, accumulation: 2, gradients };
    const engine = await tinyEngine(options, device);
    backward(engine, 0);
    const wide = gradients === 'fp32';
    for (const { bytes: held, layout, parameters } of engine.parts.units) {
      assert.equal(held.gradients, layout.numel * (wide ? 4 : 2));
      for (const { parameter } of parameters) assert.equal(parameter.grad === null, wide);
    }
    engine.zeroGrad();
    for (const { bytes: held } of engine.parts.units) assert.equal(held.gradients, 0);
    engine.destroy();
  }
}

/**
 * With fp16 and a first scale that overflows, steps are skipped without effect, and training
 * continues.
 */
async function overflow(device: Device): Promise<void> {
  const options = { precision: 'fp16', offload: false, accumulation: 2 } as const;
  const engine = await tinyEngine({ ...options, gradients: 'fp32' }, device);
  const before = weightBits(engine);
  trainTiny(engine, 0, 1);
  assert.equal(engine.wasStepApplied(), false);
  assert.deepEqual(weightBits(engine), before);
  const losses = trainTiny(engine, 1, 40);
  assert.ok(engine.skippedSteps > 0 && engine.wasStepApplied());
  assert.ok((losses.at(-1) as number) < (losses[0] as number) * 0.8, `no learning: ${losses}`);
  engine.destroy();
}

class Buffered extends nn.Module {
  readonly linear = new nn.Linear(3, 1);
  readonly shift = Tensor.from([1, 2, 0.1]).keep();
  readonly order = Tensor.from(Int32Array.of(2, 0, 1)).keep();

  forward(x: Tensor): Tensor {
    return this.linear.call(x.add(this.shift.to(x.dtype))).sum();
  }
}

async function bufferedEngine(device: Device, dtype: Precision | null): Promise<Engine> {
  const config = {
    ...tinyConfig({ precision: 'fp32', offload: false }),
    data_types: { buffer_dtype: dtype },
  };
  return (await initialize({ model: new Buffered(), config, device })).engine;
}

/** The engine converts floating-point buffers only, and converts values of a checkpoint on load. */
async function buffers(device: Device): Promise<void> {
  const dir = mkdtempSync(join(tmpdir(), 'ds-buffers-'));
  try {
    const plain = await bufferedEngine(device, null);
    const halved = await bufferedEngine(device, 'bf16');
    const [whole, half] = [plain, halved].map(({ module }) => module as Buffered);
    assert.deepEqual([whole?.shift.dtype, whole?.order.dtype], ['f32', 'i32']);
    assert.deepEqual([half?.shift.dtype, half?.order.dtype], ['bf16', 'i32']);
    assert.deepEqual(half?.order.toArray(), [2, 0, 1]);
    const rounded = [1, 2, 0.10009765625];
    assert.deepEqual(half?.shift.toArray(), rounded);
    await plain.saveCheckpoint(dir);
    await halved.loadCheckpoint(dir);
    assert.deepEqual(half?.shift.toArray(), rounded);
    for (const engine of [plain, halved]) engine.destroy();
  } finally {
    rmSync(dir, { recursive: true, force: true });
  }
}

export const cases: Case[] = [
  ...(['bf16', 'fp16'] as const).map((precision) => ({
    name: `${ACCUMULATION} micro-batches in ${precision} summed in fp32 equal their sum in f64`,
    run: exactSums(precision),
  })),
  { name: 'bytes of gradients summed in fp32', run: bytes },
  { name: 'fp16 overflows with gradients summed in fp32', run: overflow },
  { name: 'buffer_dtype converts floating buffers', run: buffers },
];

// One rank that reports its memory at every stage, and its peak with a model of many units at stage
// 3.
import { type MeasuredStage, measureStage } from '../../bench/zero-memory.js';
import { initDistributed } from '../../lib/comm/index.js';
import { initialize, nn, scope, Tensor, zero } from '../../lib/index.js';
import type { Device } from '../../lib/runtime/device.js';
import { quiet } from '../support/quiet.js';

export interface PeakBytes {
  ranks: number;
  /** overlap_comm. */
  overlap: boolean;
  /** Bytes after initialize(): shards of weights, master weights and moments. */
  states: number;
  /** Peaks above the bytes in use before initialize(). */
  initialize: number;
  step: number;
  /** Elements of one unit, of its largest parameter, and of the model. */
  unit: number;
  parameter: number;
  model: number;
}

/** Bytes of a model with frozen layers and trained scales. */
export interface FrozenBytes {
  ranks: number;
  /** offload_param. */
  offload: boolean;
  /** All frozen parameters in bf16, and the frozen parameters of one unit. */
  model: number;
  unit: number;
  /** This rank's parts of them, in device memory and in page-locked memory. */
  onDevice: number;
  pinned: number;
  /**
   * Bytes in use after initialize(), and the peak of three steps, above the bytes before
   * initialize().
   */
  states: number;
  step: number;
}

export interface MemoryReport {
  stages: MeasuredStage[];
  /** On one rank, only the entries with offload_param. */
  frozen: FrozenBytes[];
  /** Empty on one rank. */
  peaks: PeakBytes[];
}

const WIDTH = 256;
const UNITS = 16;

/**
 * Units with 128 KiB of weights, which needs no rounding to blocks, and activations of 512 bytes.
 */
class Deep extends nn.Module {
  readonly layers = Array.from(
    { length: UNITS },
    () => new nn.Linear(WIDTH, WIDTH, { bias: false }),
  );

  override forward(x: Tensor): Tensor {
    return this.layers
      .reduce((hidden, layer) => layer.call(hidden).add(hidden), x)
      .to('f32')
      .square()
      .mean();
  }
}

/** A frozen layer, and a trained scale of its output. */
class Scaled extends nn.Module {
  readonly base = new nn.Linear(WIDTH, WIDTH, { bias: false });
  readonly scale = new nn.Parameter([WIDTH], nn.init.ones);

  constructor() {
    super();
    this.base.requiresGrad_(false);
  }

  override forward(x: Tensor): Tensor {
    return scope(() => this.base.call(x).mul(this.scale).add(x));
  }
}

class DeepFrozen extends nn.Module {
  readonly first = new nn.Linear(1, WIDTH);
  readonly layers = Array.from({ length: UNITS }, () => new Scaled());

  override forward(x: Tensor): Tensor {
    const hidden = this.first.call(x);
    return this.layers
      .reduce((stream, layer) => layer.call(stream), hidden)
      .to('f32')
      .square()
      .mean();
  }
}

const inputOf = (device: Device, width: number): Tensor =>
  scope(() =>
    Tensor.from(new Float32Array(width).fill(0.1), { shape: [1, width], dtype: 'bf16', device }),
  ).keep();

/** Weights are gathered one unit at a time, without prefetch, and not kept. */
const FRUGAL = {
  stage: 3 as const,
  reduce_bucket_size: 1,
  stage3_prefetch_bucket_size: 0,
  stage3_max_live_parameters: 0,
  stage3_max_reuse_distance: 0,
  stage3_param_persistence_threshold: 0,
};

async function measureFrozen(device: Device, offload: boolean): Promise<FrozenBytes> {
  const x = inputOf(device, 1);
  const model = zero.Init(() => new DeepFrozen());
  await quiet();
  const before = device.memory.inUse;
  const { engine } = await initialize({
    model,
    config: {
      train_micro_batch_size_per_gpu: 1,
      bf16: { enabled: true },
      optimizer: { type: 'AdamW', params: { lr: 1e-3 } },
      zero_optimization: { ...FRUGAL, offload_param: { device: offload ? 'cpu' : 'none' } },
    },
  });
  const states = device.memory.inUse - before;
  const { frozen } = engine.parts.stage;
  const bytesIn = (pinned: boolean): number =>
    frozen
      .filter(({ weights }) => weights.buffer.pinned === pinned)
      .reduce((sum, { weights }) => sum + weights.bytes, 0);
  const [onDevice, pinned] = [bytesIn(false), bytesIn(true)];
  device.resetPeaks();
  for (let i = 0; i < 3; ++i) {
    engine.backward(engine.forward<Tensor>(x));
    engine.step();
  }
  engine.synchronize();
  const step = device.memory.peakInUse - before;
  const { worldSize: ranks } = engine;
  engine.destroy();
  x.dispose();
  const unit = 2 * WIDTH * WIDTH;
  return { ranks, offload, model: unit * UNITS, unit, onDevice, pinned, states, step };
}

async function measurePeak(device: Device, overlap: boolean): Promise<PeakBytes> {
  const x = inputOf(device, WIDTH);
  const model = zero.Init(() => new Deep());
  await quiet();
  const before = device.memory.inUse;
  device.resetPeaks();
  const { engine } = await initialize({
    model,
    config: {
      train_micro_batch_size_per_gpu: 1,
      bf16: { enabled: true },
      optimizer: { type: 'AdamW', params: { lr: 1e-3 } },
      zero_optimization: { ...FRUGAL, overlap_comm: overlap },
    },
  });
  const initial = device.memory.peakInUse - before;
  const states = device.memory.inUse - before;
  device.resetPeaks();
  for (let i = 0; i < 3; ++i) {
    engine.backward(engine.forward<Tensor>(x));
    engine.step();
  }
  engine.synchronize();
  const step = device.memory.peakInUse - before;
  const unit = engine.parts.units[0]?.layout.numel as number;
  const { worldSize: ranks } = engine;
  engine.destroy();
  x.dispose();
  return {
    ranks,
    overlap,
    states,
    initialize: initial,
    step,
    unit,
    parameter: unit,
    model: unit * UNITS,
  };
}

async function main(): Promise<void> {
  const { device: kind } = JSON.parse(process.argv[2] ?? '') as { device: string };
  const job = await initDistributed(kind === 'cpu' ? { device: 'cpu' } : {});
  const { device } = job.world;
  const stages: MeasuredStage[] = [];
  for (const stage of [0, 1, 2, 3] as const) {
    await quiet();
    stages.push(await measureStage(stage, nn.models.GPT2.config('tiny'), device));
  }
  const peaks: PeakBytes[] = [];
  for (const overlap of job.worldSize > 1 ? [false, true] : []) {
    peaks.push(await measurePeak(device, overlap));
  }
  const frozen: FrozenBytes[] = [];
  for (const offload of job.worldSize > 1 ? [false, true] : [true]) {
    frozen.push(await measureFrozen(device, offload));
  }
  await job.destroy();
  console.log(JSON.stringify({ stages, peaks, frozen } satisfies MemoryReport));
}

void main();

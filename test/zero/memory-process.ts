// One rank that reports what it holds at every stage, and the most it ever held of a model of many units at stage 3.
import { type MeasuredStage, measureStage } from '../../bench/zero-memory.js';
import { initDistributed } from '../../lib/comm/index.js';
import { initialize, nn, scope, Tensor, zero } from '../../lib/index.js';
import type { Device } from '../../lib/runtime/device.js';
import { quiet } from '../support/quiet.js';

export interface PeakBytes {
  ranks: number;
  /** overlap_comm. */
  overlap: boolean;
  /** What initialize() leaves on the rank: its shards of weights, master weights and moments. */
  states: number;
  /** Peaks above what was in use before initialize(). */
  initialize: number;
  step: number;
  /** One unit's elements, its largest parameter's, and the model's. */
  unit: number;
  parameter: number;
  model: number;
}

export interface MemoryReport {
  stages: MeasuredStage[];
  /** None over one rank. */
  peaks: PeakBytes[];
}

const WIDTH = 256;
const UNITS = 16;

/** Units of 128 KiB of weights each, which blocks hold without rounding, activations of 512 bytes. */
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

async function measurePeak(device: Device, overlap: boolean): Promise<PeakBytes> {
  const x = scope(() =>
    Tensor.from(new Float32Array(WIDTH).fill(0.1), { shape: [1, WIDTH], dtype: 'bf16', device }),
  ).keep();
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
      zero_optimization: {
        stage: 3,
        overlap_comm: overlap,
        reduce_bucket_size: 1,
        stage3_prefetch_bucket_size: 0,
        stage3_max_live_parameters: 0,
        stage3_max_reuse_distance: 0,
        stage3_param_persistence_threshold: 0,
      },
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
    ...{ ranks, overlap, states, initialize: initial, step, unit },
    ...{ parameter: unit, model: unit * UNITS },
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
  await job.destroy();
  console.log(JSON.stringify({ stages, peaks } satisfies MemoryReport));
}

void main();

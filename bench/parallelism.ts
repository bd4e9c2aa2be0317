// Compares meshes of the same number of ranks: memory of a rank, and bytes that it sends in a step.
import {
  CommsLogger,
  type CommsRecord,
  initDistributed,
  type ProcessGroup,
} from '../lib/comm/index.js';
import { PipelineEngine } from '../lib/engine/pipeline-engine.js';
import { type DsConfig, initialize, parallel, seed } from '../lib/index.js';
import * as models from '../lib/models/index.js';
import type { Device } from '../lib/runtime/device.js';
import { scope, Tensor } from '../lib/tensor/index.js';
import type { Options } from './main.js';

const SIZES: models.GPT2Config = {
  vocabSize: 2048,
  maxSeq: 128,
  layers: 8,
  heads: 8,
  channels: 256,
};
const [SAMPLES, MICROS] = [16, 8];

/** --dp, --pp, --tp: ranks of each axis; --stage of ZeRO; --sequence: tokens are shared out too. */
interface Way {
  dp: number;
  pp: number;
  tp: number;
  stage: 0 | 1 | 2 | 3;
  sequence: boolean;
}

function wayOf({ dp = '1', pp = '1', tp = '1', stage = '0', sequence }: Options): Way {
  const [data, stages, layers] = [dp, pp, tp].map(Number) as [number, number, number];
  return {
    dp: data,
    pp: stages,
    tp: layers,
    stage: Number(stage) as Way['stage'],
    sequence: sequence === 'true',
  };
}

function configOf({ dp, pp, stage }: Way): DsConfig {
  const micros = pp > 1 ? MICROS : 1;
  return {
    train_micro_batch_size_per_gpu: SAMPLES / dp / micros,
    gradient_accumulation_steps: micros,
    bf16: { enabled: true },
    optimizer: { type: 'AdamW', params: { lr: 1e-4 } },
    zero_optimization: {
      stage,
      overlap_comm: false,
      reduce_bucket_size: 1e6,
      stage3_max_reuse_distance: 0,
      stage3_param_persistence_threshold: 0,
    },
    ...(pp > 1 && { pipeline: { stages: pp } }),
  };
}

function batchOf(device: Device, samples: number): [Tensor, Tensor] {
  const shape = [samples, SIZES.maxSeq];
  const ids = (shift: number): Int32Array =>
    Int32Array.from({ length: samples * SIZES.maxSeq }, (_, i) => ((i + shift) * 7) % 2048);
  return [0, 1].map((shift) => Tensor.from(ids(shift), { shape, device })) as [Tensor, Tensor];
}

/** Sums the fewest bytes that a rank must send, by the best algorithm of each collective. */
class SentBytes extends CommsLogger {
  sent = 0;

  override add(record: CommsRecord): void {
    const { kind, bytes, ranks } = record;
    const others = ranks - 1;
    if (kind === 'allReduce') this.sent += (2 * bytes * others) / ranks;
    else if (kind === 'allGather' || kind === 'reduceScatter') this.sent += bytes * others;
    else this.sent += (bytes * others) / ranks;
  }
}

/** Bytes that a pipeline stage sends to its neighbours; these sends are not in the log. */
function handedOn({ dp, pp }: Way, rank: number): number {
  const stream = (SAMPLES / dp) * SIZES.maxSeq * SIZES.channels * 2;
  const stage = Math.floor(rank / dp);
  return pp === 1 ? 0 : (Number(stage > 0) + Number(stage < pp - 1)) * stream;
}

/** The largest of each number over all ranks. */
function largest(world: ProcessGroup, numbers: readonly number[]): number[] {
  const { device, size } = world;
  const all = Tensor.empty([size, numbers.length], 'f32', device);
  world.allGather(all, Tensor.from(Float32Array.from(numbers), { device })).wait();
  const values = all.toArray();
  return numbers.map((_, i) =>
    Math.max(...Array.from({ length: size }, (_x, r) => values[r * numbers.length + i] as number)),
  );
}

/** One way on as many ranks as the launcher has started: peak and states in MiB, traffic in MiB. */
export async function parallelismBench(options: Options): Promise<object | null> {
  const way = wayOf(options);
  const job = await initDistributed({
    ...(options.device && { device: options.device }),
    mesh: { tp: way.tp, pp: way.pp },
  });
  const { world, mesh } = job;
  const { device } = world;
  seed(1);
  const model = new models.GPT2(SIZES);
  const fullValue = model.numParameters();
  const layers = await mesh.axis('tp');
  const { sequence: sequenceParallel } = way;
  if (way.tp > 1) parallel.parallelize(model, layers, null, { sequenceParallel });
  const before = device.memory.inUse;
  const { engine } = await initialize({ model, config: configOf(way), device });
  const groups = new Set([world, await mesh.axis('dp'), layers]);
  const samples = engine.trainMicroBatchSizePerGpu();
  const [tokens, targets] = batchOf(device, samples);
  const step = async (): Promise<void> => {
    if (engine instanceof PipelineEngine) {
      const batches = Array.from({ length: MICROS }, () => [tokens, targets])[Symbol.iterator]();
      await engine.trainBatch(batches);
      return;
    }
    scope(() => {
      engine.backward(engine.forward<Tensor>(tokens, targets));
      engine.step();
    });
  };
  await step();
  engine.synchronize();
  const states = device.memory.inUse - before;
  device.resetPeaks();
  const log = new SentBytes();
  for (const group of groups) group.logger = log;
  await step();
  engine.synchronize();
  const peak = device.memory.peakInUse - before;
  for (const group of groups) group.logger = null;
  const numbers = largest(world, [states, peak, log.sent + handedOn(way, job.rank)]);
  const [statesMib, peakMib, sentMib] = numbers.map((bytes) => bytes / 2 ** 20);
  engine.destroy();
  const isFirst = job.rank === 0;
  await job.destroy();
  if (!isFirst) return null;
  const row = { ...way, params: fullValue, statesMib, peakMib, sentMib };
  console.log(JSON.stringify(row));
  return row;
}

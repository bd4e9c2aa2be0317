// One rank that trains the tiny GPT-2 at one stage, from a checkpoint or from the start, and
// reports its weights.
import { initDistributed } from '../../lib/comm/index.js';
import { type DsConfig, initialize, type Tensor } from '../../lib/index.js';
import { seed } from '../../lib/tensor/index.js';
import {
  type Precision,
  tinyBatch,
  tinyConfig,
  tinyModel,
  weightBits,
} from '../e2e/tiny-training.js';

/** Micro-batches of a global batch: 1 to 4 ranks share them. */
const MICROS = 12;

export interface Leg {
  stage: 0 | 1 | 2 | 3;
  precision: Precision;
  offload: boolean;
  /** Folder of offloaded state. Default: in host memory. */
  nvme?: string;
  dir: string;
  /** AdamW's moments in bf16. */
  bf16States?: boolean;
  /** Default: AdamW. */
  optimizer?: DsConfig['optimizer'];
  /** `elasticity` chooses the batch size; the samples are the same. */
  elastic?: boolean;
  /** Global steps [from, to); from > 0 resumes from `dir`. */
  from: number;
  to: number;
  /** Save after this step, during the next steps. */
  saveAt?: number;
  /** Save the loaded state there before any step. */
  copyTo?: string;
}

export interface ResumeJob {
  device: 'cpu' | 'cuda';
  legs: Leg[];
}

export interface Report {
  /** Per step: the sum over this rank's micro-batches. */
  losses: number[];
  /** Base64 of each parameter. */
  weights: Record<string, string>;
}

/** A global batch of MICROS micro-batches, whatever the number of ranks. */
function batchOf(micro: number, elastic: boolean): Partial<DsConfig> {
  const samples = MICROS * micro;
  if (!elastic) return { train_micro_batch_size_per_gpu: micro, train_batch_size: samples };
  return {
    train_micro_batch_size_per_gpu: undefined,
    elasticity: {
      enabled: true,
      max_train_batch_size: samples + 1,
      micro_batch_sizes: [micro],
      min_gpus: 1,
      max_gpus: 4,
      version: 0.1,
    },
  } as Partial<DsConfig>;
}

async function run(leg: Leg): Promise<Report> {
  const { stage, precision, offload, nvme, dir, optimizer, from, to, saveAt, copyTo } = leg;
  const { bf16States } = leg;
  seed(from > 0 ? 99 : 1234);
  const model = tinyModel();
  const config = tinyConfig({ precision, offload, nvme, optimizer, bf16States, accumulation: 1 });
  const zero = config.zero_optimization as object;
  const { engine } = await initialize({
    model,
    config: {
      ...config,
      gradient_accumulation_steps: undefined,
      ...batchOf(config.train_micro_batch_size_per_gpu as number, leg.elastic ?? false),
      zero_optimization: { ...zero, stage, ...(nvme ? { sub_group_size: 1500 } : {}) },
    },
  });
  if (from > 0) await engine.loadCheckpoint(dir);
  if (copyTo !== undefined) await engine.saveCheckpoint(copyTo, { tag: 't' });
  const losses: number[] = [];
  for (let step = from; step < to; ++step) {
    let sum = 0;
    for (let micro = engine.globalRank; micro < MICROS; micro += engine.worldSize) {
      const { tokens, targets } = tinyBatch(step * MICROS + micro, engine.device);
      const loss = engine.forward<Tensor>(tokens, targets);
      engine.backward(loss);
      engine.step();
      sum += loss.item();
      tokens.dispose();
      targets.dispose();
    }
    losses.push(sum);
    if (step + 1 === saveAt) await engine.saveCheckpoint(dir, { asynchronous: true });
  }
  await engine.checkpointDone();
  const weights = Object.fromEntries(weightBits(engine));
  engine.destroy();
  return { losses, weights };
}

async function main(): Promise<void> {
  const job = JSON.parse(process.argv[2] ?? '') as ResumeJob;
  const world = await initDistributed(job.device === 'cpu' ? { device: 'cpu' } : {});
  world.world.device.setDeterministic(true);
  const reports: Report[] = [];
  for (const leg of job.legs) reports.push(await run(leg));
  await world.destroy();
  console.log(JSON.stringify(reports));
}

void main();

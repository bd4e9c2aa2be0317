// One rank of a job: only some ranks make a collective call.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';
import { type Distributed, initDistributed, type MeshOptions } from '../../lib/comm/index.js';
import {
  type DsConfig,
  DsError,
  type Engine,
  initialize,
  nn,
  seed,
  Tensor,
} from '../../lib/index.js';

export interface AloneJob {
  mesh: MeshOptions;
  stage: 0 | 2 | 3;
  call: 'saveCheckpoint' | 'loadCheckpoint' | 'save16bitModel';
  /** The ranks that call at once; the others train on, or call late. */
  ranks: number[];
  /** Delay of the other ranks' calls; null: they never call. */
  lateMs: number | null;
}

export interface AloneReport {
  error: string;
  steps: number;
  weights: string;
}

const SIZES = { vocabSize: 67, maxSeq: 8, layers: 2, heads: 4, channels: 16 };
const ROWS = 2;

function configOf({ stage }: AloneJob, { mesh }: Distributed): DsConfig {
  return {
    train_micro_batch_size_per_gpu: ROWS,
    optimizer: { type: 'AdamW', params: { lr: 1e-3 } },
    zero_optimization: { stage },
    sequence_parallel_size: mesh.size('sp'),
    tensor_parallel: { autotp_size: mesh.size('tp') },
    ...(mesh.size('pp') > 1 ? { pipeline: { stages: mesh.size('pp') } } : {}),
  } as DsConfig;
}

async function step(engine: Engine): Promise<void> {
  const { globalSteps, dpRank, device } = engine;
  const { vocabSize, maxSeq } = SIZES;
  const one = (_: unknown, i: number) => (globalSteps * 31 + dpRank * 7 + i * 17) % vocabSize;
  const tokens = Int32Array.from({ length: ROWS * maxSeq }, one);
  const batch = [0, 1].map(() => Tensor.from(tokens, { shape: [ROWS, maxSeq], device }).keep());
  try {
    if ('trainBatch' in engine) {
      const train = engine.trainBatch as (from: Iterator<unknown>) => Promise<unknown>;
      await train.call(engine, [batch][Symbol.iterator]());
      return;
    }
    engine.backward(engine.forward(...batch));
    engine.step();
  } finally {
    for (const tensor of batch) tensor.dispose();
  }
}

async function train(alone: AloneJob, job: Distributed, dir: string): Promise<Engine> {
  seed(1234);
  const model = new nn.models.GPT2(SIZES);
  const { engine } = await initialize({ model, config: configOf(alone, job) });
  await step(engine);
  if (alone.call === 'loadCheckpoint') await engine.saveCheckpoint(dir);
  const isFirst = alone.ranks.includes(job.rank);
  if (!isFirst && alone.lateMs !== null) await pause(alone.lateMs);
  if (isFirst || alone.lateMs !== null) await engine[alone.call](dir);
  for (let i = 0; i < 3; ++i) await step(engine);
  engine.synchronize();
  return engine;
}

function weightsOf({ module }: Engine): string {
  const [first] = module.parameters();
  return String(first?.toArray()).slice(0, 300);
}

/** One folder for all ranks of the job. */
async function folderOf({ rank, store }: Distributed): Promise<string> {
  if (rank === 0) await store?.set('folder', mkdtempSync(join(tmpdir(), 'ds-alone-')));
  return (await store?.get('folder', 60_000)) ?? '';
}

async function main(alone: AloneJob): Promise<void> {
  const job = await initDistributed({ mesh: alone.mesh, device: 'cpu' });
  const dir = await folderOf(job);
  const report: AloneReport = { error: '', steps: 0, weights: '' };
  try {
    const engine = await train(alone, job, dir);
    report.steps = engine.globalSteps;
    report.weights = engine.withFullWeights(() => weightsOf(engine));
    engine.destroy();
  } catch (error) {
    report.error = error instanceof DsError ? `${error.code} ${error.message}` : String(error);
  }
  await job.destroy().catch(() => {});
  if (job.rank === 0) rmSync(dir, { recursive: true, force: true });
  console.log(JSON.stringify(report));
}

void main(JSON.parse(process.argv[2] as string) as AloneJob);

// One rank of a mesh. It trains the tiny GPT-2 on its data rank's batches, saves, resumes and
// stops, and reports the results.
import { createHash } from 'node:crypto';
import { join } from 'node:path';
import {
  type Axis,
  type Distributed,
  initDistributed,
  type MeshOptions,
} from '../../lib/comm/index.js';
import { DsError, type Engine, initialize, noGrad, seed, Tensor, zero } from '../../lib/index.js';
import { tinyBatch, tinyConfig, tinyModel, weightBits } from '../e2e/tiny-training.js';

/** A run of one stage. */
export interface MeshLeg {
  stage: 0 | 1 | 2 | 3;
  /** Number of steps, without a stop request. */
  steps: number;
  /** Folder of the checkpoint after step SAVED. */
  dir: string;
  /** Checkpoint to resume from; null starts from initial weights. */
  from: string | null;
  /** The rank that requests a stop after step SAVED and changes a weight. */
  culprit?: number;
}

/** Settings of one rank that differ from the others', in an attempt that is refused. */
export interface Misfit {
  rank: number;
  seed?: number;
  layers?: number;
  lr?: number;
  /** Batch index of the one trained step; other ranks use that of their data rank. */
  batch?: number;
}

export interface MeshJob {
  device: 'cpu' | 'cuda';
  mesh: MeshOptions;
  /** Groups over which to gather rank numbers. */
  axes: Axis[][];
  legs: MeshLeg[];
  misfits: Misfit[];
}

export interface LegReport {
  /**
   * Hashes of the first step's gradients, of the final weights, and of the weights after the
   * culprit's change.
   */
  hashes: string[];
  losses: number[];
  /** Norms as monitors receive them. */
  norms: (number | null)[];
  steps: number;
  batch: number;
  samples: number[];
}

export interface MeshReport {
  mesh: string;
  /** Ranks per requested axes. */
  gathered: number[][];
  legs: LegReport[];
  /** The error of each misfit; null if the engine was built. */
  refusals: (string | null)[];
}

const SAVED = 2;

const dataset = { length: 64, get: (index: number): number => index };

async function build(
  stage: number,
  options: Misfit | null,
): Promise<{ engine: Engine; samples: number[] }> {
  seed(options?.seed ?? 1234);
  const base = tinyConfig({
    precision: 'bf16',
    offload: false,
    clip: 0.5,
    lr: options?.lr ?? 3e-3,
    zero: { stage: stage as 0 },
  });
  const model = tinyModel({ dropout: 0.1, model: { layers: options?.layers ?? 2 } });
  const config = { ...base, seed: undefined, steps_per_print: 1 };
  // Every rank starts with the value of the first rank.
  const [parameter] = model.parameters();
  noGrad(() => parameter?.mul_(1 + Number(process.env.RANK)));
  const { engine, trainLoader } = await initialize({ model, config, trainingData: dataset });
  const [first] = trainLoader as Iterable<Tensor> as [Tensor];
  const samples = first.toArray() as number[];
  first.dispose();
  return { engine, samples };
}

function hashOf(engine: Engine): string {
  const hash = createHash('sha1');
  for (const text of weightBits(engine).values()) hash.update(text);
  return hash.digest('hex');
}

/** One step on batch `index`; returns the loss, and waits for the step decision. */
function step(engine: Engine, index: number): number {
  const { tokens, targets } = tinyBatch(index, engine.device);
  const loss = engine.forward<Tensor>(tokens, targets);
  engine.backward(loss);
  engine.step();
  const value = loss.item();
  tokens.dispose();
  targets.dispose();
  engine.synchronize();
  return value;
}

async function train({ stage, steps, dir, from, culprit }: MeshLeg): Promise<LegReport> {
  const { engine, samples } = await build(stage, null);
  if (from) await engine.loadCheckpoint(from);
  const losses: number[] = [];
  const norms: (number | null)[] = [];
  void engine.stopRequested;
  while (engine.globalSteps < steps && !engine.stopRequested) {
    const index = engine.globalSteps * engine.dpWorldSize + engine.dpRank;
    losses.push(step(engine, index));
    norms.push(engine.getGlobalGradNorm());
    if (engine.globalSteps !== SAVED) continue;
    await engine.saveCheckpoint(dir, { asynchronous: stage > 1 });
    if (engine.globalRank === culprit) engine.requestStop();
  }
  await engine.checkpointDone();
  await engine.save16bitModel(dir, 'exported.safetensors');
  const hashes = [hashOf(engine)];
  if (culprit !== undefined) hashes.push(changedBy(culprit, engine));
  const report = { hashes, losses, norms, samples };
  const rest = { steps: engine.globalSteps, batch: engine.trainBatchSize() };
  engine.destroy();
  return { ...report, ...rest };
}

/** Every rank reads the value that only the culprit has written. */
function changedBy(culprit: number, engine: Engine): string {
  const [parameter] = engine.module.parameters();
  if (!parameter) return '';
  zero.GatheredParameters(parameter, { modifierRank: culprit }, () => {
    if (engine.globalRank === culprit) noGrad(() => parameter.fill_(culprit));
  });
  return hashOf(engine);
}

async function gather(job: Distributed, axes: readonly Axis[]): Promise<number[]> {
  const group = await job.mesh.axis(...axes);
  const device = group.device;
  const localTensor = Tensor.from([job.rank], { device }).keep();
  const all = Tensor.from(new Float32Array(group.size), { device }).keep();
  group.allGather(all, localTensor).wait();
  const ranks = all.toArray() as number[];
  for (const tensor of [localTensor, all]) tensor.dispose();
  if (group.rank !== job.mesh.place(...axes)) throw new Error(`place ${group.rank} in ${ranks}`);
  return ranks;
}

async function refusal(misfit: Misfit, rank: number): Promise<string | null> {
  try {
    const own = misfit.rank === rank ? misfit : null;
    const { engine } = await build(1, own);
    try {
      if (misfit.batch !== undefined) step(engine, own?.batch ?? engine.dpRank);
    } finally {
      engine.destroy();
    }
    return null;
  } catch (error) {
    if (!(error instanceof DsError)) throw error;
    return `${error.code} ${error.message}`;
  }
}

async function main(meshJob: MeshJob): Promise<void> {
  const { device, mesh, axes, legs, misfits } = meshJob;
  const job = await initDistributed({ mesh, ...(device === 'cpu' ? { device } : {}) });
  job.world.device.setDeterministic(true);
  const gathered: number[][] = [];
  for (const items of axes) gathered.push(await gather(job, items));
  const reports: LegReport[] = [];
  for (const leg of legs) {
    const dir = join(leg.dir, `stage${leg.stage}`);
    const from = leg.from && join(leg.from, `stage${leg.stage}`);
    reports.push(await train({ ...leg, dir, from }));
  }
  const refusals: (string | null)[] = [];
  for (const misfit of misfits) refusals.push(await refusal(misfit, job.rank));
  await job.destroy();
  const report: MeshReport = { mesh: String(job.mesh.shape), gathered, legs: reports, refusals };
  console.log(JSON.stringify(report));
}

void main(JSON.parse(process.argv[2] ?? '') as MeshJob);

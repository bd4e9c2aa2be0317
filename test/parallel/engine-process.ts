// One rank of a mesh that trains a model with layers split over tp, leg by leg, and reports the
// final state.
import { type Distributed, initDistributed, type MeshOptions } from '../../lib/comm/index.js';
import {
  type DsConfig,
  DsError,
  type Engine,
  initialize,
  nn,
  parallel,
  seed,
  Tensor,
  zero,
} from '../../lib/index.js';
import type { Region } from '../../lib/runtime/box.js';
import { CutModel, Gated, inStages, SIZES } from './cut-layers.js';

/** A run from the initial weights. */
export interface Leg {
  /** A language model that the configuration splits, instead of the model that is split by hand. */
  model?: 'gpt2' | 'llama' | 'qwen3' | undefined;
  /** Trains with whole batches on one stage too, with the same dropout. */
  staged?: boolean;
  stage: 0 | 1 | 2 | 3;
  /** Settings of zero_optimization in addition to the stage. */
  zero?: { mics_shard_size?: number } | undefined;
  precision?: 'fp32' | 'bf16' | 'fp16';
  offload?: boolean;
  /** A part of the names of layers without gradients. */
  frozen?: string;
  micros?: number;
  optimizer?: DsConfig['optimizer'];
  /**
   * Path of the checkpoint after half of the steps, and after a resume; `from` is the checkpoint to
   * resume.
   */
  save?: string;
  from?: string;
  /** Accumulates gradients in f32. */
  wide?: boolean;
  /** The rank with an overflow in the gradient of a split layer in step 1. */
  overflow?: number;
  /** The rank that gets a different batch, or one of another shape, from step `after` + 1 on. */
  misled?: { rank: number; shape?: boolean; after?: number };
  /** A mistake that only this rank makes before initialize(). */
  wrong?: { rank: number; what: 'place' | 'shape' };
  steps?: number;
  /** The rank that gets SIGTERM after its second step; all ranks save where they stop. */
  stops?: number;
  /** Splits tokens over ranks between split layers. */
  sequence?: boolean;
  /** The rank that exits before its last step, without a message. */
  dies?: number;
  /** The rank that tries to change a split parameter. */
  changes?: number;
}

export interface EngineJob {
  device: 'cpu' | 'cuda';
  mesh: MeshOptions;
  legs: Leg[];
}

/** A parameter or its part on a rank. */
export interface Held {
  region: Region;
  values: number[];
}

export interface LegReport {
  losses: number[];
  norms: (number | null)[];
  skipped: number;
  initial: Record<string, Held>;
  weights: Record<string, Held>;
  /** The error, if the leg threw. */
  error?: string;
}

const [ROWS, TOKENS, STEPS] = [3, 8, 6];

const LANGUAGE = { vocabSize: 67, maxSeq: TOKENS, layers: 4, heads: 4, channels: 32 };

/** Grouped heads, so that with four ranks some share a head. */
function languageModel(name: NonNullable<Leg['model']>): nn.models.CausalLM {
  const { GPT2, Llama, Qwen3 } = nn.models;
  if (name === 'gpt2') return new GPT2({ ...LANGUAGE, dropout: 0.1 });
  const Model = name === 'llama' ? Llama : Qwen3;
  return new Model({ ...LANGUAGE, hidden: 56, kvHeads: 2 });
}

function batchOf(
  { index, tokens, vocabulary }: { index: number; tokens: number; vocabulary: number },
  { device }: Engine,
): { [name: string]: Tensor } {
  const draw = (salt: number): Tensor => {
    const one = (_: unknown, i: number) => (index * 31 + i * 17 + salt * 7) % vocabulary;
    const values = Int32Array.from({ length: ROWS * tokens }, one);
    return Tensor.from(values, { shape: [ROWS, tokens], device }).keep();
  };
  return { inputs: draw(1), labels: draw(2) };
}

function configOf(leg: Leg, { mesh }: Distributed): DsConfig {
  const [pp, sp, tp] = [mesh.size('pp'), mesh.size('sp'), mesh.size('tp')];
  const cuts = {
    ...(sp > 1 ? { sequence_parallel_size: sp } : {}),
    ...(tp > 1 ? { tensor_parallel: { autotp_size: tp } } : {}),
    ...(pp > 1 || leg.staged ? { pipeline: { stages: pp } } : {}),
  };
  const { stage, precision = 'fp32', offload, micros = 2, optimizer, wide } = leg;
  return {
    train_micro_batch_size_per_gpu: ROWS,
    gradient_accumulation_steps: micros,
    gradient_clipping: 0.5,
    optimizer: optimizer ?? { type: 'AdamW', params: { lr: 3e-3 } },
    zero_optimization: {
      stage,
      ...leg.zero,
      ...(offload ? { offload_optimizer: { device: 'cpu' } } : {}),
    },
    ...(precision === 'fp32' ? {} : { [precision]: { enabled: true } }),
    ...(wide ? { data_types: { grad_accum_dtype: 'fp32' } } : {}),
    ...(leg.model ? cuts : {}),
    seed: 1234,
  } as DsConfig;
}

/** The parameters of this rank, gathered from ZeRO shards. */
function heldBy(engine: Engine): Record<string, Held> {
  const read = () =>
    Object.fromEntries(
      Array.from(engine.module.namedParameters(), ([name, parameter]): [string, Held] => {
        const values = parameter.to('f32').toArray().flat() as number[];
        return [name, { region: parameter.region, values }];
      }),
    );
  return zero.GatheredParameters(engine.module, {}, read);
}

async function build(leg: Leg, job: Distributed): Promise<Engine> {
  seed(1234);
  const group = await job.mesh.axis('tp');
  const byHand = () => (job.mesh.size('pp') > 1 ? inStages(group) : new CutModel(group));
  const model = leg.model ? languageModel(leg.model) : byHand();
  if (leg.sequence) parallel.parallelize(model, group, null, { sequenceParallel: true });
  for (const [name, parameter] of model.namedParameters()) {
    if (leg.frozen && name.includes(leg.frozen)) parameter.requireGrad(false);
    const { wrong } = leg;
    if (wrong?.rank !== job.rank || !name.endsWith('3.down')) continue;
    spoil(parameter, wrong.what);
  }
  const { engine } = await initialize({ model, config: configOf(leg, job) });
  return engine;
}

/** Declares a wrong tensor, or a wrong place in it. */
function spoil(parameter: nn.Parameter, kind: 'place' | 'shape'): void {
  const { whole, boxes } = parameter.region;
  const [box] = boxes;
  if (!box) return;
  const [rows = 0, columns = 0] = whole;
  const shape = [rows, box.shape[1] as number];
  if (kind === 'shape') parameter.partOf({ whole: [rows, columns + 1], boxes });
  else parameter.partOf({ whole, boxes: [{ offset: [0, 1], shape }] });
}

/**
 * One step; returns the loss of this rank's last micro-batch, or the mean of all for a pipeline.
 */
async function step(engine: Engine, leg: Leg): Promise<number> {
  const micros = engine.gradientAccumulationSteps();
  const { misled } = leg;
  const isMisled = misled?.rank === engine.globalRank && engine.globalSteps >= (misled.after ?? 0);
  const batch = (micro: number) => {
    const index = (engine.globalSteps * micros + micro) * engine.dpWorldSize + engine.dpRank;
    const tokens = isMisled && misled?.shape ? TOKENS - 1 : TOKENS;
    const vocabulary = leg.model ? LANGUAGE.vocabSize : SIZES.vocabulary;
    return batchOf({ index: isMisled ? index + 5 : index, tokens, vocabulary }, engine);
  };
  const batches = Array.from({ length: micros }, (_, micro) => batch(micro));
  try {
    if ('trainBatch' in engine) {
      const train = engine.trainBatch as (from: Iterator<unknown>) => Promise<Tensor>;
      return (await train.call(engine, batches[Symbol.iterator]())).item();
    }
    let loss = 0;
    for (const { inputs, labels } of batches) {
      const out = engine.forward<Tensor>(inputs, labels);
      engine.backward(out);
      engine.step();
      loss += out.item() / micros;
    }
    return loss;
  } finally {
    for (const tensors of batches) for (const tensor of Object.values(tensors)) tensor.dispose();
  }
}

async function train(leg: Leg, job: Distributed): Promise<LegReport> {
  const report: LegReport = { losses: [], norms: [], skipped: 0, initial: {}, weights: {} };
  const engine = await build(leg, job);
  try {
    if (leg.from) {
      await engine.loadCheckpoint(leg.from);
      if (leg.save) await engine.saveCheckpoint(leg.save);
    }
    report.initial = heldBy(engine);
    const { changes: modifierRank } = leg;
    if (modifierRank !== undefined)
      zero.GatheredParameters(engine.module, { modifierRank }, () => {});
    const steps = leg.steps ?? STEPS;
    const mayStop = leg.stops !== undefined;
    const isOver = (): boolean => mayStop && engine.stopRequested;
    while (!isOver() && engine.globalSteps < steps) {
      if (leg.dies === job.rank && engine.globalSteps === 1) process.exit(3);
      const isSpoilt = leg.overflow === job.rank && engine.globalSteps === 1;
      for (const model of engine.module.modules())
        if (model instanceof Gated) model.overflows = isSpoilt;
      report.losses.push(await step(engine, leg));
      report.norms.push(engine.getGlobalGradNorm());
      if (leg.stops === job.rank && engine.globalSteps === 2) process.kill(process.pid, 'SIGTERM');
      if (leg.save && !mayStop && engine.globalSteps === steps / 2) {
        await engine.saveCheckpoint(leg.save, { asynchronous: leg.stage > 1 });
      }
    }
    await engine.checkpointDone();
    if (leg.save && mayStop) await engine.saveCheckpoint(leg.save);
    engine.synchronize();
    report.skipped = engine.skippedSteps;
    report.weights = heldBy(engine);
    if (leg.save) await engine.save16bitModel(leg.save, 'weights.safetensors');
    return report;
  } finally {
    engine.destroy();
  }
}

function hasFailed({ world }: Distributed): boolean {
  try {
    world.check();
    return false;
  } catch {
    return true;
  }
}

async function main({ device, mesh, legs }: EngineJob): Promise<void> {
  const job = await initDistributed({ mesh, ...(device === 'cpu' ? { device } : {}) });
  job.world.device.setDeterministic(true);
  const reports: LegReport[] = [];
  for (const leg of legs) {
    try {
      reports.push(await train(leg, job));
    } catch (error) {
      if (!(error instanceof DsError)) throw error;
      const text = `${error.code} ${error.message}`;
      reports.push({ losses: [], norms: [], skipped: 0, initial: {}, weights: {}, error: text });
      if (hasFailed(job)) break;
    }
  }
  await job.destroy().catch(() => {});
  console.log(JSON.stringify(reports));
}

if (process.argv[2]) void main(JSON.parse(process.argv[2]) as EngineJob);

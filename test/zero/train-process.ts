// One rank that trains the tiny GPT-2 under a list of configurations and reports losses and weights
// of each.
import { createHash } from 'node:crypto';
import { CommsLogger, initDistributed } from '../../lib/comm/index.js';
import { measureMemory } from '../../lib/engine/watch/memory-breakdown.js';
import { type DsConfig, type Engine, initialize, type Tensor } from '../../lib/index.js';
import { seed } from '../../lib/tensor/index.js';
import {
  type TinyOptions,
  tinyBatch,
  tinyConfig,
  tinyModel,
  weightBits,
} from '../e2e/tiny-training.js';

export interface Setting extends TinyOptions {
  name: string;
  steps: number;
  /** All ranks train on the same micro-batches. Default: each has its own. */
  sameBatches?: boolean;
  /** Added to the configuration. */
  more?: Partial<DsConfig>;
}

export interface TrainJob {
  device: 'cpu' | 'cuda';
  settings: Setting[];
  /** Report the weights themselves, not only their hash. */
  weights?: boolean;
}

export interface Trained {
  name: string;
  hash: string;
  losses: number[];
  norms: (number | null)[];
  skipped: number;
  /** Of the units on one rank, padding included. */
  elements: number;
  /** Bytes on this rank after the first backward. */
  firstMicroBatch: { weights: number; gradients: number };
  /** Gathers of shards, and of second copies of the weights, where there are such. */
  gathers?: { shards: number; near: number };
  /** Base64 of each parameter. */
  weights?: Record<string, string>;
}

async function build(setting: Setting): Promise<Engine> {
  seed(1234);
  const config = { ...tinyConfig(setting), ...setting.more };
  return (await initialize({ model: tinyModel(setting), config })).engine;
}

function train(
  engine: Engine,
  { steps, sameBatches = false }: Setting,
): Pick<Trained, 'losses' | 'norms' | 'firstMicroBatch'> {
  let firstMicroBatch = { weights: 0, gradients: 0 };
  const losses: number[] = [];
  const norms: (number | null)[] = [];
  const micros = engine.gradientAccumulationSteps();
  for (let micro = 0; micro < steps * micros; ++micro) {
    const index = sameBatches ? micro : micro * engine.worldSize + engine.globalRank;
    const { tokens, targets } = tinyBatch(index, engine.device);
    const loss = engine.forward<Tensor>(tokens, targets);
    engine.backward(loss);
    if (micro === 0) {
      const { weights, gradients } = measureMemory(engine.parts).device;
      firstMicroBatch = { weights, gradients };
    }
    engine.step();
    losses.push(loss.item());
    tokens.dispose();
    targets.dispose();
    if (micro % micros === micros - 1) norms.push(engine.getGlobalGradNorm());
  }
  return { losses, norms, firstMicroBatch };
}

/** Counts gathers until the function that it gives is called, where there are two kinds. */
function watchGathers({ parts }: Engine): () => Pick<Trained, 'gathers'> {
  const { shardGroup: shards, secondaryGroup: secondary } = parts.ranks;
  if (!secondary || secondary === shards) return () => ({});
  const loggers = [shards, secondary].map((group) => {
    group.logger = new CommsLogger();
    return group.logger;
  });
  return () => {
    for (const group of [shards, secondary]) group.logger = null;
    const [all = 0, close = 0] = loggers.map((logger) =>
      logger
        .totals()
        .filter(({ kind, bytes }) => kind === 'allGather' && bytes > 1000)
        .reduce((sum, { count }) => sum + count, 0),
    );
    return { gathers: { shards: all, near: close } };
  };
}

async function main(): Promise<void> {
  const job = JSON.parse(process.argv[2] ?? '') as TrainJob;
  const world = await initDistributed(job.device === 'cpu' ? { device: 'cpu' } : {});
  const results: Trained[] = [];
  for (const setting of job.settings) {
    const engine = await build(setting);
    const gathersOf = watchGathers(engine);
    const trained = { ...train(engine, setting), ...gathersOf() };
    const bits = weightBits(engine);
    const hash = createHash('sha1');
    for (const text of bits.values()) hash.update(text);
    const { skippedSteps: skipped } = engine;
    const weights = job.weights ? { weights: Object.fromEntries(bits) } : {};
    const elements = engine.parts.units.reduce((sum, { layout }) => sum + layout.numel, 0);
    const report = { name: setting.name, hash: hash.digest('hex'), skipped, elements };
    results.push({ ...report, ...trained, ...weights });
    engine.destroy();
  }
  await world.destroy();
  console.log(JSON.stringify(results));
}

void main();

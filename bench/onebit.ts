// Compares 1-bit optimizers with dense ones on several ranks: loss of a tiny GPT-2 on real text,
// bytes sent by a rank, and step time.
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { CommsLogger, type Distributed, joinLaunched } from '../lib/comm/index.js';
import { type DsConfig, type Engine, initialize } from '../lib/index.js';
import * as models from '../lib/models/index.js';
import { noGrad, seed, Tensor } from '../lib/tensor/index.js';
import type { Options } from './main.js';
import { median } from './report.js';

type Section = NonNullable<DsConfig['optimizer']>;

const SEQ = 64;
const BATCH = 8;
/** Steps per point of a curve; a point is the mean of their losses. */
const POINT = 50;

/**
 * Settings of Adam and LAMB. Their second moment starts at 0 without a correction, so beta2 is
 * small enough to reach its mean after few updates.
 */
const decays = { betas: [0.9, 0.98] as [number, number], weight_decay: 0.01 };

/** Optimizers by name for a run of `steps`; `--freeze` is the warm-up's share. */
function optimizers(steps: number, options: Options): Record<string, Section> {
  const freeze = Math.ceil(steps * Number(options.freeze ?? 0.2));
  const adam = { lr: Number(options['adam-lr'] ?? 2e-3), ...decays };
  const lamb = { lr: Number(options['lamb-lr'] ?? 1e-2), ...decays };
  const sgd = { lr: Number(options['sgd-lr'] ?? 0.3), momentum: Number(options.momentum ?? 0.9) };
  return {
    AdamW: { type: 'AdamW', params: adam },
    OneBitAdam: { type: 'OneBitAdam', params: { ...adam, freeze_step: freeze } },
    ZeroOneAdam: {
      type: 'ZeroOneAdam',
      params: {
        ...adam,
        var_freeze_step: freeze,
        local_step_scaler: freeze,
        local_step_clipper: 4,
      },
    },
    Lamb: { type: 'Lamb', params: lamb },
    OneBitLamb: { type: 'OneBitLamb', params: { ...lamb, freeze_step: freeze } },
    SGD: { type: 'SGD', params: sgd },
    OneBitSGD: { type: 'OneBitSGD', params: { ...sgd, freeze_step: freeze } },
  };
}

/** Bytes of a folder's pages; the last tenth is for evaluation. */
function textOf(folder: string): { train: Buffer; held: Buffer } {
  const pages = readdirSync(folder).filter((name) => name.endsWith('.md'));
  const all = Buffer.concat(pages.sort().map((name) => readFileSync(join(folder, name))));
  const cut = Math.floor(all.length * 0.9);
  return { train: all.subarray(0, cut), held: all.subarray(cut) };
}

/** Windows that begin at a hash of `index`, the same in every run. */
function batchOf(text: Buffer, index: number, device: Engine['device']): [Tensor, Tensor] {
  const tokens = new Int32Array(BATCH * SEQ);
  const targets = new Int32Array(BATCH * SEQ);
  for (let row = 0; row < BATCH; ++row) {
    const hash = Math.imul(index * BATCH + row + 1, 2654435761) >>> 0;
    const from = Math.floor((hash / 2 ** 32) * (text.length - SEQ - 1));
    for (let i = 0; i < SEQ; ++i) {
      tokens[row * SEQ + i] = text[from + i] as number;
      targets[row * SEQ + i] = text[from + i + 1] as number;
    }
  }
  const shape = [BATCH, SEQ];
  const upload = (values: Int32Array) => Tensor.from(values, { shape, device }).keep();
  return [upload(tokens), upload(targets)];
}

function configOf(optimizer: Section, steps: number, clip = 1): DsConfig {
  return {
    train_micro_batch_size_per_gpu: BATCH,
    gradient_clipping: clip,
    optimizer,
    scheduler: {
      type: 'WarmupCosineLR',
      params: { total_num_steps: steps, warmup_num_steps: Math.ceil(steps / 10) },
    },
    zero_optimization: { stage: 0 },
  };
}

const tiny = { vocabSize: 256, maxSeq: SEQ, layers: 2, heads: 4, channels: 64, dropout: 0 };

interface Run {
  steps: number;
  text: ReturnType<typeof textOf>;
  clip: number;
}

interface Curve {
  optimizer: Section;
  /** Training losses, each the mean over so many steps of all ranks' losses. */
  points: number[];
  /** Mean over batches that were not trained on. */
  evaluation: number;
  /** Bytes that a rank has sent for gradients and moments, a ring's share of an all-reduce. */
  bytesSent: number;
  milliseconds: number;
}

async function curveOf(
  world: Distributed['world'],
  optimizer: Section,
  { steps, text, clip }: Run,
): Promise<Curve> {
  seed(1234);
  const logger = new CommsLogger();
  const { engine } = await initialize({
    model: new models.GPT2(tiny),
    config: configOf(optimizer, steps, clip),
  });
  const points: number[] = [];
  let sum = 0;
  world.logger = logger;
  const begin = performance.now();
  for (let step = 0; step < steps; ++step) {
    const index = step * world.size + world.rank;
    const [tokens, targets] = batchOf(text.train, index, engine.device);
    engine.backward(engine.forward<Tensor>(tokens, targets));
    engine.step();
    tokens.dispose();
    targets.dispose();
    sum += engine.getGlobalLoss() ?? Number.NaN;
    if (step % POINT !== POINT - 1) continue;
    points.push(Number((sum / POINT).toFixed(4)));
    sum = 0;
  }
  const milliseconds = (performance.now() - begin) / steps;
  world.logger = null;
  const evaluation = evaluate(engine, text.held);
  engine.destroy();
  return {
    optimizer,
    points,
    evaluation: Number(evaluation.toFixed(4)),
    bytesSent: sentBy(logger, world.size),
    milliseconds: Number(milliseconds.toFixed(2)),
  };
}

function evaluate(engine: Engine, text: Buffer): number {
  engine.eval();
  const losses = Array.from({ length: 32 }, (_, index) => {
    const [tokens, targets] = batchOf(text, index, engine.device);
    const loss = noGrad(() => engine.forward<Tensor>(tokens, targets)).item();
    tokens.dispose();
    targets.dispose();
    return loss;
  });
  return losses.reduce((total, loss) => total + loss, 0) / losses.length;
}

/**
 * Bytes of gradients and moments. The row of the norm is left out; it is the only other message and
 * small.
 */
function sentBy(logger: CommsLogger, ranks: number): number {
  return logger.totals().reduce((total, { kind, bytes, count }) => {
    const share = (ranks - 1) / ranks;
    const each = { allReduce: 2 * share, allToAll: share, allGather: ranks - 1 }[kind as string];
    return total + count * bytes * (each ?? 0);
  }, 0);
}

interface Timing {
  parameters: number;
  /** Medians of the same steps, taken in turn, in milliseconds. */
  dense: number;
  compressed: number;
  ratio: number;
  steps: number;
  /** Bytes that a rank sends in one step, by the log of collectives. */
  sent: { dense: number; compressed: number };
}

/** The timed model: a small one, or a named GPT-2 in bf16 with samples of 1024 tokens. */
function timedModel({ model, layers = '8', channels = '320' }: Options) {
  if (model !== undefined) {
    const shape = { ...models.GPT2.config(model), dropout: 0 };
    return { shape, seq: shape.maxSeq, precision: { bf16: { enabled: true } } };
  }
  const sizes = { layers: Number(layers), channels: Number(channels) };
  return { shape: { vocabSize: 256, maxSeq: 16, heads: 4, dropout: 0, ...sizes }, seq: 16 };
}

/**
 * Times a step of AdamW and a step of 1-bit Adam's second phase in turn. A step has one sample, so
 * communication takes most of the time.
 */
async function timeOf({ world }: Distributed, options: Options, steps: number): Promise<Timing> {
  const { shape, seq, precision } = timedModel(options);
  const engineOf = async (optimizer: Section): Promise<Engine> => {
    const config = { ...configOf(optimizer, 1e6), train_micro_batch_size_per_gpu: 1, ...precision };
    return (await initialize({ model: new models.GPT2(shape), config })).engine;
  };
  const engines = [
    await engineOf({ type: 'AdamW', params: { lr: 1e-4 } }),
    await engineOf({ type: 'OneBitAdam', params: { lr: 1e-4, freeze_step: 2 } }),
  ];
  const [first] = engines as [Engine];
  const input = { shape: [1, seq], device: first.device };
  const tokens = Tensor.from(new Int32Array(seq).fill(7), input);
  const times = engines.map((): number[] => []);
  const update = (engine: Engine): void => {
    engine.backward(engine.forward<Tensor>(tokens, tokens));
    engine.step();
    engine.synchronize();
  };
  for (let step = 0; step < steps + 5; ++step) {
    for (const [i, engine] of engines.entries()) {
      const begin = performance.now();
      update(engine);
      if (step >= 5) times[i]?.push(performance.now() - begin);
    }
  }
  const [sentDense = 0, sentCompressed = 0] = engines.map((engine) => {
    const logger = new CommsLogger();
    world.logger = logger;
    update(engine);
    world.logger = null;
    return sentBy(logger, world.size);
  });
  const parameters = first.module.parameters().reduce((sum, { numel }) => sum + numel, 0);
  for (const engine of engines) engine.destroy();
  tokens.dispose();
  const [dense = 0, compressed = 0] = times.map((list) => Number(median(list).toFixed(1)));
  const sent = { dense: sentDense, compressed: sentCompressed };
  const ratio = Number((compressed / dense).toFixed(3));
  return { parameters, dense, compressed, ratio, steps, sent };
}

/**
 * Each rank of a job trains curves, then times steps.
 *
 * Curves: `--optimizers A,B` (default all), `--steps` (2000), `--text FOLDER` (docs), `--adam-lr`,
 * `--lamb-lr`, `--sgd-lr`, `--momentum` of SGD (0.9), `--clip` (1), `--freeze` (0.2), the warm-up's
 * share.
 *
 * Timed: `--timed` steps (30; 0 disables), `--layers` (8), `--channels` (320), or `--model NAME`.
 */
export async function oneBitBench(options: Options): Promise<object | null> {
  const job = await joinLaunched(options.device ? { device: options.device } : {});
  const steps = Number(options.steps ?? 2000);
  const text = textOf(options.text ?? 'docs');
  const clip = Number(options.clip ?? 1);
  const all = optimizers(steps, options);
  const chosen = options.optimizers ?? Object.keys(all).join();
  const names = steps > 0 ? chosen.split(',') : [];
  const curves: Record<string, Curve> = {};
  for (const name of names) {
    curves[name] = await curveOf(job.world, all[name] as Section, { steps, text, clip });
    const { evaluation, bytesSent, milliseconds } = curves[name];
    if (job.rank === 0) console.error(name, evaluation, bytesSent, milliseconds);
  }
  const timed = Number(options.timed ?? 30);
  const timing = timed > 0 ? await timeOf(job, options, timed) : null;
  const { rank, worldSize: ranks } = job;
  await job.destroy();
  const { train, held } = text;
  const bytes = { train: train.length, held: held.length };
  return rank === 0 ? { ranks, steps, model: tiny, text: bytes, curves, timing } : null;
}

// Compares the loss of GPT-2 trained in bf16 and with FP8 products, on the same text in the same
// order.
import { closeSync, openSync, readSync } from 'node:fs';
import { createRequire } from 'node:module';
import { type DsConfig, type Engine, initialize, nn } from '../lib/index.js';
import type { Module } from '../lib/nn/module.js';
import { device as findDevice } from '../lib/runtime/device.js';
import { noGrad, seed, Tensor } from '../lib/tensor/index.js';
import type { Options } from './main.js';
import { benchModel } from './models.js';

interface Data {
  train: Int32Array;
  held: Int32Array;
}

interface Sizes {
  batch: number;
  seq: number;
}

/** Text beyond this is not read. */
const LONGEST = 15_000_000;
/** Held-out windows of an evaluation. */
const HELD = 16;

const load = createRequire(__filename);

/** Tokens of GPT-2, modulo a smaller vocabulary; the last twentieth of the text is held out. */
function tokensOf(file: string, vocabulary: number): Data {
  const bytes = Buffer.alloc(LONGEST);
  const descriptor = openSync(file, 'r');
  const length = readSync(descriptor, bytes, 0, LONGEST, 0);
  closeSync(descriptor);
  const { encode } = load('gpt-tokenizer/encoding/r50k_base') as { encode(text: string): number[] };
  const tokens: number[] = [];
  // Pieces keep the time of the encoder linear.
  for (let at = 0; at < length; at += 1 << 16) {
    const end = Math.min(length, at + (1 << 16));
    for (const token of encode(bytes.toString('utf8', at, end))) tokens.push(token % vocabulary);
  }
  const all = Int32Array.from(tokens);
  const cut = Math.floor(all.length * 0.95);
  return { train: all.subarray(0, cut), held: all.subarray(cut) };
}

/** Windows [batch, seq] of `tokens` that begin at hashes of `index`, the same in every run. */
function windows(
  tokens: Int32Array,
  index: number,
  { batch, seq }: Sizes,
  { device }: Engine,
): [inputs: Tensor, targets: Tensor] {
  const of = (shift: number): Tensor => {
    const rows = new Int32Array(batch * seq);
    for (let row = 0; row < batch; ++row) {
      const hash = Math.imul(index * batch + row + 1, 2_654_435_761) >>> 0;
      const first = (hash % (tokens.length - seq - 1)) + shift;
      rows.set(tokens.subarray(first, first + seq), row * seq);
    }
    return Tensor.from(rows, { shape: [batch, seq], device }).keep();
  };
  return [of(0), of(1)];
}

/** Step, loss of the training batch, held-out loss, and the latter with products in bf16. */
type Point = [step: number, train: number, held: number, heldInBf16: number];

interface Run {
  readonly recipe: string;
  readonly seed: number;
}

/** body() with the products of all layers in the dtype of the weights. */
function withoutFp8<T>(model: Module, body: () => T): T {
  const layers = [...model.modules()].filter((module) => module instanceof nn.Linear);
  const recipes = layers.map(({ fp8 }) => fp8);
  for (const layer of layers) layer.fp8 = null;
  try {
    return body();
  } finally {
    for (const [i, layer] of layers.entries()) layer.fp8 = recipes[i] ?? null;
  }
}

async function lossesOf(
  { recipe, seed: first }: Run,
  { train, held }: Data,
  options: Options,
): Promise<{ curve: Point[]; seconds: number }> {
  const sizes = { batch: Number(options.batch ?? 16), seq: Number(options.seq ?? 1024) };
  const steps = Number(options.steps ?? 2000);
  const every = Number(options.every ?? 250);
  const until = Math.min(steps, Number(options.until ?? steps));
  seed(first);
  const config = {
    train_micro_batch_size_per_gpu: sizes.batch,
    gradient_clipping: 1,
    optimizer: { type: 'AdamW', params: { lr: 6e-4, betas: [0.9, 0.95], weight_decay: 0.1 } },
    scheduler: {
      type: 'WarmupCosineLR',
      params: {
        total_num_steps: steps,
        warmup_num_steps: Number(options['warm-up'] ?? Math.ceil(steps / 20)),
        warmup_type: options.rise ?? 'log',
      },
    },
    bf16: { enabled: true },
    ...(recipe !== 'bf16' && { fp8: { enabled: true, recipe } }),
  } as DsConfig;
  const model = benchModel(options, sizes.seq);
  const { engine } = await initialize({ model, config, device: findDevice(options.device) });
  const evaluate = (): number => {
    let sum = 0;
    for (let i = 0; i < HELD; ++i) {
      const both = windows(held, i, sizes, engine);
      sum += noGrad(() => engine.forward<Tensor>(...both)).item();
      for (const one of both) one.dispose();
    }
    return sum / HELD;
  };
  const began = performance.now();
  const curve: Point[] = [];
  for (let step = 1; step <= until; ++step) {
    const both = windows(train, step, sizes, engine);
    const loss = engine.forward<Tensor>(...both);
    engine.backward(loss);
    engine.step();
    if (step % every === 0)
      curve.push([step, loss.item(), evaluate(), withoutFp8(model, evaluate)]);
    for (const one of both) one.dispose();
  }
  const seconds = (performance.now() - began) / 1000;
  engine.destroy();
  return { curve, seconds };
}

const mean = (values: readonly number[]): number =>
  values.reduce((sum, value) => sum + value, 0) / values.length;

/**
 * --text FILE; --recipes and --seeds with commas: all recipes of one seed before the next seed.
 * --warm-up STEPS; --rise log|linear, of the warm-up. The last row of a curve has the held-out
 * losses at the end, and `of_first` compares means over the seeds.
 */
export async function fp8LossBench(options: Options): Promise<object> {
  const { vocabSize } = benchModel(options, 1024);
  const data = tokensOf(options.text ?? 'README.md', vocabSize);
  const recipes = (options.recipes ?? 'bf16,tensorwise,rowwise').split(',');
  const seeds = (options.seeds ?? '1234').split(',').map(Number);
  const rows: (Run & { curve: Point[]; seconds: number })[] = [];
  for (const seed of seeds)
    for (const recipe of recipes) {
      const row = { recipe, seed, ...(await lossesOf({ recipe, seed }, data, options)) };
      rows.push(row);
      console.log(JSON.stringify(row)); // The process may be stopped before the last run.
    }
  const runs: Record<string, object> = {};
  let base: number | null = null;
  for (const recipe of recipes) {
    const of = rows.filter((row) => row.recipe === recipe);
    const held = mean(of.map(({ curve }) => curve.at(-1)?.[2] ?? Number.NaN));
    const heldInBf16 = mean(of.map(({ curve }) => curve.at(-1)?.[3] ?? Number.NaN));
    base ??= held;
    const ratios = { of_first: held / base, of_first_in_bf16: heldInBf16 / base };
    runs[recipe] = { held_out_loss: held, held_out_loss_in_bf16: heldInBf16, ...ratios, rows: of };
    const percent = ((held / base - 1) * 100).toFixed(2);
    const inBf16 = ((heldInBf16 / base - 1) * 100).toFixed(2);
    console.error(`${recipe}: ${held.toFixed(4)}, ${percent} %; evaluated in bf16 ${inBf16} %`);
  }
  return {
    model: options.model ?? '124M',
    tokens: data.train.length,
    held: data.held.length,
    runs,
  };
}

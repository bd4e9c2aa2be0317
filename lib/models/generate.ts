// Sampling from a GPT-2, one token at a time, with the keys and values of earlier tokens cached.
import { DsError } from '../errors.js';
import { KeyValueCache } from '../nn/attention.js';
import { cpu } from '../runtime/device.js';
import * as kernels from '../runtime/kernels.generated.js';
import { type OptionNames, readOptions } from '../runtime/options.js';
import { requireInteger } from '../runtime/require-number.js';
import { noGrad, scope, Tensor } from '../tensor/index.js';
import type { GPT2 } from './gpt2/gpt2.js';

/** How GPT2.generate() samples. */
export interface GenerateOptions {
  maxNewTokens: number;
  /** Logits are divided by it; 0 takes the likeliest token. Default 1. */
  temperature?: number;
  /** Only the K likeliest tokens are candidates. Default: all. */
  topK?: number;
  /** The same seed gives the same text. Default 0. */
  seed?: number;
}

const NAMES: OptionNames<GenerateOptions> = {
  ...{ maxNewTokens: true, temperature: true, topK: true, seed: true },
};

/**
 * The prompt's tokens followed by `maxNewTokens` sampled ones. Memory does not grow with the number
 * of tokens beyond the cache. Throws DS_ARGUMENT when they do not fit the model's longest sequence, or
 * for options that cannot be.
 */
export function generate(
  model: GPT2,
  prompt: readonly number[],
  options: GenerateOptions,
): number[] {
  const { maxSeq } = model.config;
  const { temperature = 1, topK, ...read } = readOptions('generate', options, NAMES);
  const maxNewTokens = requireInteger('generate maxNewTokens', read.maxNewTokens, 0);
  const seed = requireInteger('generate seed', read.seed ?? 0, 0);
  const total = prompt.length + maxNewTokens;
  if (prompt.length === 0 || total > maxSeq) {
    throw new DsError({
      code: 'DS_ARGUMENT',
      op: 'generate',
      expected: `1 to ${maxSeq} tokens in all`,
      got: `a prompt of ${prompt.length} and ${maxNewTokens} new ones`,
    });
  }
  if (!(temperature >= 0) || !(topK === undefined || (Number.isInteger(topK) && topK > 0))) {
    throw new DsError({
      code: 'DS_ARGUMENT',
      op: 'generate',
      expected: 'a temperature of 0 or more and a topK of 1 or more',
      got: `temperature ${temperature}, topK ${topK}`,
    });
  }
  const wasTraining = model.training;
  model.eval();
  try {
    return noGrad(() =>
      scope(() => {
        const draws = uniformDraws(maxNewTokens, seed);
        const caches = makeCaches(model, total);
        const tokens = [...prompt];
        let fed = 0;
        for (const draw of draws) {
          const scores = scope(() => nextScores(model, tokens.slice(fed), caches));
          fed = tokens.length;
          tokens.push(sample(scores, draw, { temperature, topK: topK ?? scores.length }));
        }
        return tokens;
      }),
    );
  } finally {
    model.train(wasTraining);
  }
}

/** One number in [0, 1) per token, the same on every device. */
function uniformDraws(count: number, seed: number): number[] {
  const out = Tensor.empty([count], 'f32', cpu());
  kernels.randomUniform({ out, low: 0, high: 1, seed, offset: 0 });
  return out.toArray();
}

function makeCaches(model: GPT2, capacity: number): KeyValueCache[] {
  const { heads, channels, layers } = model.config;
  const { dtype, device } = model.transformer.wte.weight;
  const shape = [1, heads, capacity, channels / heads] as const;
  return Array.from({ length: layers }, () => new KeyValueCache([...shape], dtype, device));
}

function nextScores(model: GPT2, tokens: number[], caches: readonly KeyValueCache[]): number[] {
  const { device } = model.transformer.wte.weight;
  const input = Tensor.from(Int32Array.from(tokens), { shape: [1, tokens.length], device });
  return model.next(input, caches).toArray();
}

/**
 * The token at `draw` of the cumulative distribution of softmax(scores / temperature) over the best
 * K.
 */
function sample(
  scores: readonly number[],
  draw: number,
  { temperature, topK }: { temperature: number; topK: number },
): number {
  const order = scores.map((_, token) => token);
  order.sort((a, b) => (scores[b] as number) - (scores[a] as number));
  const best = order[0] as number;
  if (temperature === 0) return best;
  const top = scores[best] as number;
  const candidates = order.slice(0, topK);
  const weights = candidates.map((token) =>
    Math.exp(((scores[token] as number) - top) / temperature),
  );
  let left = draw * weights.reduce((sum, w) => sum + w, 0);
  for (const [i, weight] of weights.entries()) {
    left -= weight;
    if (left < 0) return candidates[i] as number;
  }
  return candidates[candidates.length - 1] as number;
}

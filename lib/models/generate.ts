// Samples text from a causal language model, one token at a time.

import { DsError } from '../errors.js';
import type { SequenceCache } from '../nn/attention.js';
import type { Module } from '../nn/module.js';
import { cpu, type Device } from '../runtime/device.js';
import { formatValue } from '../runtime/format-value.js';
import * as kernels from '../runtime/kernels.generated.js';
import { namesOf, readOptions } from '../runtime/options.js';
import { requireInteger } from '../runtime/require-number.js';
import { required } from '../runtime/required.js';
import { inOrder, noGrad, scope, Tensor } from '../tensor/index.js';

/** Interface of a model that generates text. */
export interface CausalModel extends Module {
  /**
   * Maps tokens [B, T], i32, to logits [B, T, V]. The logits at t predict the next token and do not
   * depend on later tokens.
   */
  forward(tokens: Tensor): Tensor;
  /** Maximum number of tokens of a sequence; absent: unlimited. */
  readonly maxSeq?: number;
  /**
   * Creates a decoder that caches up to `capacity` tokens. Without it, forward() processes all
   * tokens for each new one.
   */
  decoder?(capacity: number): Decoder;
}

/** Decodes one sequence step by step. The scope that created it owns it. */
export interface Decoder {
  /**
   * Appends tokens [1, T] to the earlier tokens. Returns their logits [1, T, V], or the logits of
   * the last token only.
   */
  next(tokens: Tensor): Tensor;
}

/** How generate() samples. */
export interface GenerateOptions {
  /** Maximum number of tokens to sample. */
  maxNewTokens: number;
  /** Divisor of the logits; 0 selects the likeliest token. Default: 1. */
  temperature?: number;
  /** Keeps the K likeliest tokens. Default: all tokens. */
  topK?: number;
  /** Seed of the draws; equal seeds give equal text. Default: 0. */
  seed?: number;
}

/**
 * Returns the prompt followed by `maxNewTokens` sampled tokens. forward() of the model must return
 * logits. Runs in evaluation mode, without a graph. Only the decoder's cache grows with the number
 * of tokens. Throws DS_ARGUMENT if the tokens exceed the longest sequence of the model or an option
 * is invalid. Throws DS_SHAPE if the model returns other shapes.
 */
export function generate(
  model: CausalModel,
  prompt: readonly number[],
  options: GenerateOptions,
): number[] {
  const {
    temperature = 1,
    topK,
    ...read
  } = readOptions('generate', options, namesOf.GenerateOptions);
  const maxNewTokens = requireInteger('generate maxNewTokens', read.maxNewTokens, 0);
  const seed = requireInteger('generate seed', read.seed ?? 0, 0);
  requirePrompt(prompt);
  const total = prompt.length + maxNewTokens;
  requireFits(model, prompt, maxNewTokens);
  requireSampling(temperature, topK);
  const wasTraining = model.training;
  model.eval();
  try {
    return noGrad(() =>
      scope(() => {
        const draws = uniformDraws(maxNewTokens, seed);
        const decoder = model.decoder?.(total) ?? rereadDecoder(model);
        const home = model.parameters()[0]?.device ?? cpu();
        const tokens = [...prompt];
        let fed = 0;
        for (const draw of draws) {
          const scores = scope(() => lastScores(decoder, tokens.slice(fed), home));
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

function requireFits({ maxSeq = Infinity }: CausalModel, prompt: readonly number[], more: number) {
  const total = prompt.length + more;
  if (prompt.length > 0 && total <= maxSeq) return;
  throw new DsError({
    code: 'DS_ARGUMENT',
    op: 'generate',
    expected: maxSeq === Infinity ? 'a prompt of a token or more' : `1 to ${maxSeq} tokens in all`,
    got: `a prompt of ${prompt.length} tokens and ${more} new tokens`,
  });
}

function requirePrompt(prompt: unknown): void {
  const isList = Array.isArray(prompt) || ArrayBuffer.isView(prompt);
  const tokens = isList ? Array.from(prompt as ArrayLike<unknown>) : [];
  const wrong = tokens.findIndex(
    (token) => typeof token !== 'number' || !Number.isInteger(token) || token < 0,
  );
  if (isList && wrong < 0) return;
  throw new DsError({
    code: 'DS_ARGUMENT',
    op: 'generate prompt',
    expected: 'a list of tokens, integers of 0 or more',
    got: isList ? `${formatValue(tokens[wrong])} at ${wrong}` : formatValue(prompt),
    hint: typeof prompt === 'string' ? 'Convert text to tokens with encode() of a Tokenizer.' : '',
  });
}

function requireSampling(temperature: unknown, topK: unknown): void {
  const isTemperature = typeof temperature === 'number' && temperature >= 0;
  if (isTemperature && (topK === undefined || (Number.isInteger(topK) && Number(topK) > 0))) return;
  throw new DsError({
    code: 'DS_ARGUMENT',
    op: 'generate',
    expected: 'a temperature of 0 or more and a topK of 1 or more',
    got: `temperature ${formatValue(temperature)}, topK ${formatValue(topK)}`,
  });
}

/** Returns one number in [0, 1) per token, the same on every device. */
function uniformDraws(count: number, seed: number): number[] {
  const out = Tensor.empty([count], 'f32', cpu());
  kernels.randomUniform({ out, low: 0, high: 1, seed, offset: 0, ...inOrder });
  return out.toArray();
}

/** Returns a decoder that processes the whole sequence for every token. */
function rereadDecoder(model: CausalModel): Decoder {
  const read: number[] = [];
  return {
    next(tokens) {
      read.push(...tokens.toArray());
      return model.call(toRow(read, tokens.device));
    },
  };
}

/** A model with a key-value cache; see CausalLM. */
interface Caching {
  caches(batch: number, capacity: number): SequenceCache[];
  next(tokens: Tensor, caches: readonly SequenceCache[]): Tensor;
  rereads(from: number, to: number): boolean;
}

/**
 * Returns a decoder that caches keys and values of up to `capacity` tokens, and recomputes them
 * when they become invalid.
 */
export function cachedDecoder(model: Caching, capacity: number): Decoder {
  const caches = model.caches(1, capacity);
  const keeps = !model.rereads(1, capacity);
  const read: number[] = [];
  return {
    next(tokens) {
      if (keeps) return model.next(tokens, caches);
      const before = read.length;
      read.push(...tokens.toArray());
      if (before === 0 || !model.rereads(before, read.length)) return model.next(tokens, caches);
      for (const cache of caches) cache.length = 0;
      return model.next(toRow(read, tokens.device), caches);
    },
  };
}

/** Returns the logits [V] of the token after `tokens`. */
function lastScores(decoder: Decoder, tokens: number[], home: Device): number[] {
  const logits: unknown = decoder.next(toRow(tokens, home));
  if (!(logits instanceof Tensor) || logits.ndim !== 3 || logits.size(0) !== 1) {
    throw new DsError({
      code: 'DS_SHAPE',
      op: 'generate',
      expected: 'logits [1, T, V] from the forward of the model',
      got: formatValue(logits),
    });
  }
  return logits.narrow(1, logits.size(1) - 1, 1).toArray();
}

const toRow = (tokens: readonly number[], device: Device): Tensor =>
  Tensor.from(Int32Array.from(tokens), { shape: [1, tokens.length], device });

/**
 * Returns the token at `draw` of the cumulative distribution of softmax(scores / temperature) over
 * the best K.
 */
function sample(
  scores: readonly number[],
  draw: number,
  { temperature, topK }: { temperature: number; topK: number },
): number {
  const order = scores.map((_, token) => token);
  order.sort((a, b) => required(scores[b]) - required(scores[a]));
  const best = required(order[0]);
  if (temperature === 0) return best;
  const top = required(scores[best]);
  const candidates = order.slice(0, topK);
  const weights = candidates.map((token) =>
    Math.exp((required(scores[token]) - top) / temperature),
  );
  let remaining = draw * weights.reduce((sum, w) => sum + w, 0);
  for (const [i, weight] of weights.entries()) {
    remaining -= weight;
    if (remaining < 0) return required(candidates[i]);
  }
  return required(candidates[candidates.length - 1]);
}

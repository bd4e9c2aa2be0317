// Computes log-likelihoods of continuations after contexts, with the token rules of
// lm-evaluation-harness.

import type { CausalLM } from '../models/index.js';
import { argumentError, dataError, valueError } from '../runtime/input-errors.js';
import { namesOf, readOptions } from '../runtime/options.js';
import { required } from '../runtime/required.js';
import { crossEntropy, Tensor } from '../tensor/index.js';
import type { Tokenizer } from '../text/index.js';
import {
  type EvaluatedOptions,
  type EvaluationSetup,
  groupByAngles,
  LANGUAGE_MODELS,
  prepareEvaluation,
  runBatches,
} from './evaluated-model.js';

/** Options of logLikelihoods(). */
export interface LikelihoodOptions extends EvaluatedOptions {
  /** Whether to put the tokenizer's BOS token before every context. Default: false. */
  addBos?: boolean;
}

/** Result for one pair of context and continuation. */
export interface Likelihood {
  /** Sum of the log-probabilities of the continuation's tokens, in nats. */
  logLikelihood: number;
  /** Whether each token of the continuation has the largest logit. */
  isGreedy: boolean;
  /** Number of tokens of the continuation. */
  tokens: number;
  /** Number of tokens cut from the left of the context, because the model accepts fewer. */
  cut: number;
}

/**
 * Computes the log-likelihood of each continuation after its context, for pairs [context,
 * continuation]. A continuation that starts with a word must start with a space. If the context has
 * n tokens, the continuation has the tokens of context + continuation from number n on. Spaces at
 * the end of a context belong to its continuation. An empty context becomes the BOS token, or the
 * EOS token without BOS. Source: loglikelihood() of lm-evaluation-harness.
 *
 * Rejects with DS_ARGUMENT for wrong options, a model that an engine owns, and a job of several
 * ranks; DS_DATA for a continuation without tokens or with more tokens than the model accepts.
 */
export async function logLikelihoods(
  model: CausalLM,
  pairs: readonly (readonly [context: string, continuation: string])[],
  given: LikelihoodOptions = {},
): Promise<Likelihood[]> {
  const op = 'logLikelihoods';
  const { addBos = false, onProgress } = readOptions(op, given, namesOf.LikelihoodOptions);
  const parts = await prepareEvaluation(op, model, given, LANGUAGE_MODELS);
  requireBos(op, addBos, parts.tokenizer);
  if (!Array.isArray(pairs) || !pairs.every(isPair)) {
    throw valueError(`${op} pairs`, 'a list of [context, continuation]', pairs);
  }
  const requests = pairs.map(([context, continuation], i) =>
    encodeRequest(parts, { context, continuation, addBos, location: `${op} pair ${i}` }),
  );
  return computeLikelihoods(parts, requests, onProgress);
}

const isPair = (pair: unknown): boolean =>
  Array.isArray(pair) && pair.length === 2 && pair.every((text) => typeof text === 'string');

/** Throws DS_ARGUMENT for `addBos` with a tokenizer without BOS. */
export function requireBos(op: string, addBos: boolean, { bosId }: Tokenizer): void {
  if (!addBos || bosId !== null) return;
  throw argumentError(
    `${op} addBos`,
    'a tokenizer with a BOS token',
    'a tokenizer without a BOS token',
  );
}

/** A context and its continuation as tokens. */
interface LikelihoodRequest {
  /** Inputs of the model: all tokens except the last. */
  inputs: Int32Array;
  /** Tokens of the continuation, the targets of the last inputs. */
  targets: Int32Array;
  cut: number;
}

/** A context and its continuation as texts, with their location in the data. */
interface Pair {
  context: string;
  continuation: string;
  addBos: boolean;
  location: string;
}

/**
 * Encodes a pair of texts. Throws DS_DATA if the continuation has no token, or more tokens than the
 * model accepts.
 */
export function encodeRequest(
  { model, tokenizer }: EvaluationSetup,
  pair: Pair,
): LikelihoodRequest {
  const { location } = pair;
  const { before, targets } = encodePair(tokenizer, pair);
  const { length } = targets;
  if (length === 0)
    throw dataError(location, 'a continuation of at least one token', 'an empty continuation');
  if (length > model.maxSeq) {
    const expected = `a continuation of at most ${model.maxSeq} tokens, the maximum of the model`;
    throw dataError(location, expected, `${length} tokens`);
  }
  const tokens = [...before, ...targets];
  const lastTokens = tokens.slice(-(model.maxSeq + 1));
  return {
    inputs: Int32Array.from(lastTokens.slice(0, -1)),
    targets: Int32Array.from(targets),
    cut: tokens.length - lastTokens.length,
  };
}

function encodePair(
  tokenizer: Tokenizer,
  { context, continuation, addBos, location }: Pair,
): { before: number[]; targets: number[] } {
  const encode = (text: string): number[] => [
    ...tokenizer.encode(text, { addSpecialTokens: false }),
  ];
  const first = addBos && tokenizer.bosId !== null ? [tokenizer.bosId] : [];
  if (context === '') {
    const start = tokenizer.bosId ?? tokenizer.eosId;
    if (start === null) {
      const got = 'no context, and a tokenizer without BOS and EOS tokens';
      throw dataError(location, 'a context', got);
    }
    return { before: [start], targets: encode(continuation) };
  }
  const start = context.trimEnd();
  const allTokens = encode(context + continuation);
  const before = encode(start);
  return { before: [...first, ...before], targets: allTokens.slice(before.length) };
}

/**
 * Computes the likelihoods. Runs the longest requests first, so that a batch has little padding.
 */
export async function computeLikelihoods(
  setup: EvaluationSetup,
  requests: readonly LikelihoodRequest[],
  onProgress: EvaluatedOptions['onProgress'],
): Promise<Likelihood[]> {
  const order = requests.map((_, i) => i);
  const lengthOf = (i: number): number => requests[i]?.inputs.length ?? 0;
  order.sort((a, b) => lengthOf(b) - lengthOf(a));
  const likelihoods: Likelihood[] = [];
  const rows = { length: order.length, get: (i: number) => required(order[i]) };
  await runBatches(
    setup,
    rows,
    (numbers) => {
      for (const group of groupByAngles(setup.model, numbers, lengthOf)) {
        const batch = group.map((number) => required(requests[number]));
        const logits = computeLogits(setup, batch);
        batch.forEach((request, row) => {
          likelihoods[required(group[row])] = sumLikelihood(logits, row, request);
        });
      }
    },
    onProgress,
  );
  return likelihoods;
}

/**
 * Returns logits [B, T, V] of the inputs, padded on the right. Attention is causal, so padding is
 * safe.
 */
function computeLogits(
  { model, device }: EvaluationSetup,
  batch: readonly LikelihoodRequest[],
): Tensor {
  const longest = Math.max(...batch.map(({ inputs }) => inputs.length));
  const tokens = new Int32Array(batch.length * longest);
  batch.forEach(({ inputs }, row) => {
    tokens.set(inputs, row * longest);
  });
  return model.call(Tensor.from(tokens, { shape: [batch.length, longest], device }));
}

function sumLikelihood(logits: Tensor, row: number, request: LikelihoodRequest): Likelihood {
  const { inputs, targets, cut } = request;
  const count = targets.length;
  const rows = logits
    .narrow(0, row, 1)
    .narrow(1, inputs.length - count, count)
    .reshape([count, logits.size(2)]);
  const target = Tensor.from(targets, { device: logits.device });
  const losses = crossEntropy(rows, target, { reduction: 'none' }).toArray();
  const greedyTokens = rows.argmax(-1).toArray().map(Number);
  return {
    logLikelihood: -losses.reduce((sum, loss) => sum + loss, 0),
    isGreedy: greedyTokens.every((token, i) => token === targets[i]),
    tokens: count,
    cut,
  };
}

// Beam search: keeps several running sequences and returns the likeliest complete sequences.

import { DsError } from '../errors.js';
import type { CausalLM } from '../models/index.js';
import { KeyValueCache } from '../nn/attention.js';
import type { Device } from '../runtime/device.js';
import { waitForEventLoop } from '../runtime/event-loop.js';
import { formatValue } from '../runtime/format-value.js';
import { valueError } from '../runtime/input-errors.js';
import * as kernels from '../runtime/kernels.generated.js';
import { declareOption, integer, number, type Options, readDeclared } from '../runtime/option.js';
import { required } from '../runtime/required.js';
import { logSoftmax, noGrad, scope, Tensor, topk } from '../tensor/index.js';
import type { Tokenizer } from '../text/index.js';
import { type Beam, type BeamRules, BeamTree, type Candidate } from './beam-tree.js';
import { bannedTokens, penalizedScore } from './host-rules.js';
import { biasValues, needsBias } from './sampler-rows.js';
import {
  MAX_SEQUENCES,
  requireToken,
  SAMPLING,
  type SamplingOptions,
  type SamplingRules,
  tokenOptions,
} from './sampling-options.js';

export type { Beam } from './beam-tree.js';

/** Options of a search. */
export const BEAMS = {
  /** Number of beams, from 1 to 16384. */
  numBeams: integer('number of texts that the search keeps; more is slower', {
    min: 1,
    max: MAX_SEQUENCES,
    shown: '1: no search',
  }),
  /**
   * Exponent of the length that divides the sum of the logprobs. Values above 0 favor longer
   * sequences. Default: 1.
   */
  lengthPenalty: number(
    'divide the sum of logprobs by length^`lengthPenalty`; above 0 favors longer texts',
    { shown: '1' },
  ),
  /**
   * True stops when `numBeams` sequences are finished. False stops when a better result is unlikely
   * at the present length. "never" judges by the largest possible length. Default: false.
   */
  earlyStopping: declareOption(requireStopping, 'when the search stops', { shown: '`false`' }),
};

/** Options of beamSearch() apart from sampling options. */
const SEARCH = {
  ...BEAMS,
  /** Number of beams, from 1 to 16384. */
  numBeams: integer('number of texts that the search keeps; more is slower', {
    min: 1,
    max: MAX_SEQUENCES,
    required: true,
  }),
  /** Maximum number of new tokens of a sequence. */
  maxNewTokens: integer('maximum number of new tokens of a sequence', { min: 1, required: true }),
  /** Number of results, at most `numBeams`. Default: 1. */
  n: integer('results', { min: 1, default: 1 }),
  /** End tokens. Default: no end token. */
  stopTokens: declareOption((_, tokens: readonly number[]) => tokens, 'end tokens', {
    default: [],
  }),
  /** Aborts the search. */
  signal: declareOption((_, signal: AbortSignal | null) => signal, 'aborts the search', {
    default: null,
  }),
  /** Tokenizes text entries of badWords. */
  tokenizer: declareOption(
    (_, item: Tokenizer | null) => item,
    'tokenizes text entries of badWords',
    {
      default: null,
    },
  ),
};

/**
 * Options of beamSearch(). Sampling options apply if they change scores before a draw: penalties,
 * biases, banned and allowed tokens, minTokens. They apply to logprobs, as in transformers.
 */
export interface BeamOptions extends SamplingOptions, Options<typeof SEARCH> {}

const OP = 'beamSearch';

/** The checked options. */
interface CheckedSearch {
  rules: BeamRules;
  scoring: SamplingRules;
  n: number;
  signal: AbortSignal | null;
}

/**
 * Returns the `n` best continuations of `prompt`, the best first. Results are identical to
 * transformers with num_beams. Each step blocks the thread. The keys and values of `numBeams`
 * sequences stay in memory until the search ends.
 *
 * Rejects with DS_ARGUMENT for invalid options and for options that sample. Rejects with DS_LIMIT
 * for a sequence longer than the model's limit and with DS_NONFINITE for scores that are not
 * finite. After an abort, rejects with the signal's reason.
 */
export async function beamSearch(
  model: CausalLM,
  prompt: readonly number[],
  options: BeamOptions,
): Promise<Beam[]> {
  const search = readSearch(model, prompt, options);
  if (model.recurrentSizes) {
    const expected = 'a model without recurrent layers, because a search copies keys and values';
    throw refusedError('model', expected, model.constructor.name, 'Omit numBeams.');
  }
  const run = new BeamRun(model, prompt, search);
  try {
    while (run.step()) {
      await waitForEventLoop();
      search.signal?.throwIfAborted();
    }
    return run.tree.bestBeams(search.n);
  } finally {
    run.dispose();
  }
}

function readSearch(
  model: CausalLM,
  prompt: readonly number[],
  options: BeamOptions,
): CheckedSearch {
  const vocabulary = { vocabSize: model.vocabSize, tokenizer: options.tokenizer };
  const declared = { ...SAMPLING, ...tokenOptions(vocabulary), ...SEARCH };
  const { doSample: _, ...read } = readDeclared(OP, options, declared);
  const { numBeams, maxNewTokens, n, stopTokens, signal } = read;
  if (n > numBeams) throw refusedError('n', `at most numBeams, ${numBeams}`, n);
  requireNoSampling(read);
  for (const token of [...prompt, ...stopTokens]) {
    requireToken(`${OP} tokens`, token, model.vocabSize);
  }
  requireLength(prompt.length, maxNewTokens, model.maxSeq);
  const ends = new Set(stopTokens);
  const { lengthPenalty = 1, earlyStopping = false } = read;
  return {
    rules: { numBeams, maxNewTokens, lengthPenalty, earlyStopping, ends },
    scoring: read,
    n,
    signal,
  };
}

/** Options that change scores before a draw. */
const SCORING: readonly string[] = [
  'doSample',
  'repetitionPenalty',
  'presencePenalty',
  'frequencyPenalty',
  'minTokens',
];

/** Throws DS_ARGUMENT for options that only sampling uses. */
function requireNoSampling(rules: SamplingRules): void {
  const values: Readonly<Record<string, unknown>> = {
    ...rules,
    temperature: rules.temperature || SAMPLING.temperature.default,
  };
  for (const [name, { default: idle }] of Object.entries({
    ...SAMPLING,
    logprobs: { default: null },
  })) {
    if (SCORING.includes(name) || values[name] === idle) continue;
    const hint = 'Omit this option or numBeams.';
    throw refusedError(
      name,
      'the default, because a beam search does not sample',
      values[name],
      hint,
    );
  }
}

function requireStopping(op: string, given: boolean | 'never'): boolean | 'never' {
  if (typeof given === 'boolean' || given === 'never') return given;
  throw valueError(op, 'true, false or "never"', given);
}

function requireLength(prompt: number, more: number, maxSeq: number): void {
  if (prompt > 0 && prompt + more <= maxSeq) return;
  throw new DsError({
    code: prompt > 0 ? 'DS_LIMIT' : 'DS_ARGUMENT',
    op: `${OP} prompt`,
    expected: `1 to ${maxSeq} tokens, including maxNewTokens`,
    got: `${prompt} tokens and ${more} new tokens`,
  });
}

/** A running search; owns its tensors. */
class BeamRun {
  readonly tree: BeamTree;
  private caches: KeyValueCache[] = [];
  private readonly bias: Tensor | null;
  private isFirst = true;

  constructor(
    private readonly model: CausalLM,
    private readonly prompt: readonly number[],
    private readonly search: CheckedSearch,
  ) {
    this.tree = new BeamTree(search.rules);
    const { scoring } = search;
    const bias = needsBias(scoring) ? biasValues(scoring, model.vocabSize) : null;
    this.bias = bias && Tensor.from(bias, { device: this.device }).keep();
  }

  /** Appends a token to every running sequence. Returns false at the end of the search. */
  step(): boolean {
    const parents = noGrad(() =>
      scope(() => {
        const logprobs = this.scoreTokens(this.isFirst ? this.computePrompt() : this.readScores());
        return this.tree.advance(this.topCandidates(logprobs));
      }),
    );
    this.isFirst = false;
    if (parents) noGrad(() => scope(() => this.reorder(parents)));
    return parents !== null;
  }

  dispose(): void {
    for (const { keys, values } of this.caches) {
      keys.dispose();
      values.dispose();
    }
    this.caches = [];
    this.bias?.dispose();
  }

  private get device(): Device {
    return this.model.computesIn.device;
  }

  /** Computes the prompt once and copies its keys and values to all beams. */
  private computePrompt(): Tensor {
    const { model, prompt } = this;
    const { numBeams, maxNewTokens } = this.search.rules;
    const read = this.createCaches(1, prompt.length);
    const logits = model.next(tokenTensor([prompt], this.device), read);
    this.caches = this.createCaches(numBeams, prompt.length + maxNewTokens);
    this.caches.forEach((cache, layer) => {
      const layerCache = required(read[layer]);
      for (const name of ['keys', 'values'] as const) {
        const shared = layerCache[name].expand([numBeams, ...layerCache[name].shape.slice(1)]);
        kernels.copy({ in: shared, out: cache[name].narrow(2, 0, layerCache.length) });
        cache[name].keep();
      }
      cache.length = layerCache.length;
    });
    return logits.expand([numBeams, 1, logits.size(2)]);
  }

  private createCaches(batch: number, capacity: number): KeyValueCache[] {
    const isPlain = (value: unknown): value is KeyValueCache => value instanceof KeyValueCache;
    return this.model.caches(batch, capacity).filter(isPlain);
  }

  private readScores(): Tensor {
    const last = this.tree.running.map(({ tokens }) => [required(tokens.at(-1))]);
    return this.model.next(tokenTensor(last, this.device), this.caches);
  }

  /** Returns logprob sums [1, numBeams * V]: each running sequence followed by each token. */
  private scoreTokens(logits: Tensor): Tensor {
    const { running } = this.tree;
    const vocabulary = this.model.vocabSize;
    const scores = logits.reshape([running.length, logits.size(2)]).narrow(1, 0, vocabulary);
    let logprobs = logSoftmax(scores.to('f32'), -1);
    if (this.bias) logprobs = logprobs.add(this.bias);
    logprobs = this.adjustLogprobs(logprobs);
    const totals = Float32Array.from(running, ({ total }) => total);
    const before = Tensor.from(totals, { shape: [running.length, 1], device: this.device });
    return logprobs.add(before).reshape([1, running.length * vocabulary]);
  }

  /** Applies penalties and bans. The host computes the scores of the few affected tokens. */
  private adjustLogprobs(logprobs: Tensor): Tensor {
    const { scoring, rules } = this.search;
    const edits = this.tree.running.map(({ tokens }) => {
      const bans = bannedTokens(scoring, { prompt: this.prompt, tokens, ends: rules.ends });
      const penalized = penalizedScore(scoring, this.prompt, tokens);
      return { bans, penalized, tokens: [...new Set([...penalized.tokens, ...bans])] };
    });
    const max = Math.max(...edits.map(({ tokens }) => tokens.length));
    if (max === 0) return logprobs;
    // Rows need equal lengths. The first token pads a row; it is written twice with one value.
    const padded = edits.map(({ tokens }) =>
      Array.from({ length: max }, (_, i) => tokens[i] ?? tokens[0] ?? 0),
    );
    const index = tokenTensor(padded, this.device);
    const old = logprobs.gather(1, index).toArray();
    const edited = edits.flatMap(({ bans, penalized }, beam) =>
      required(padded[beam]).map((token, i) =>
        bans.has(token)
          ? Number.NEGATIVE_INFINITY
          : penalized.of(token, required(old[beam * max + i])),
      ),
    );
    const shape = [edits.length, max];
    const src = Tensor.from(Float32Array.from(edited), { shape, device: this.device });
    return logprobs.scatter(1, index, src);
  }

  private topCandidates(totals: Tensor): Candidate[] {
    const vocabulary = this.model.vocabSize;
    const { values, indices } = topk(totals, Math.min(this.tree.breadth, totals.size(1)));
    const order = indices.toArray();
    return values.toArray().map((total, i) => {
      if (Number.isNaN(total)) throw notFiniteError();
      const index = required(order[i]);
      return { beam: Math.floor(index / vocabulary), token: index % vocabulary, total };
    });
  }

  /**
   * Copies the keys and values of its parent to each sequence. A sequence can be parent and child,
   * so all parents are cloned first.
   */
  private reorder(parents: readonly number[]): void {
    const moves = parents.flatMap((from, to) => (from === to ? [] : [{ from, to }]));
    for (const cache of this.caches) {
      for (const all of [cache.keys, cache.values]) {
        const filled = all.narrow(2, 0, cache.length);
        const copies = moves.map(({ from }) => filled.narrow(0, from, 1).clone());
        moves.forEach(({ to }, i) => {
          kernels.copy({ in: required(copies[i]), out: filled.narrow(0, to, 1) });
        });
      }
    }
  }
}

function tokenTensor(tokens: readonly (readonly number[])[], device: Device): Tensor {
  const shape = [tokens.length, tokens[0]?.length ?? 0];
  return Tensor.from(Int32Array.from(tokens.flat()), { shape, device });
}

function notFiniteError(): DsError {
  const [expected, got] = ['finite scores of the next token', 'NaN'];
  return new DsError({ code: 'DS_NONFINITE', op: OP, expected, got });
}

function refusedError(name: string, expected: string, got: unknown, hint = ''): DsError {
  return new DsError({
    code: 'DS_ARGUMENT',
    op: `${OP} ${name}`,
    expected,
    got: formatValue(got),
    hint,
  });
}

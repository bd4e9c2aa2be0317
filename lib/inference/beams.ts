// Beam search: the likeliest texts as a whole, found by keeping several side by side.
import { turn } from '../data/event-loop.js';
import { DsError } from '../errors.js';
import type { CausalLM } from '../models/index.js';
import type { KeyValueCache } from '../nn/attention.js';
import type { Device } from '../runtime/device.js';
import { formatValue } from '../runtime/format-value.js';
import * as kernels from '../runtime/kernels.generated.js';
import { type OptionNames, readOptions } from '../runtime/options.js';
import { requireFinite, requireInteger } from '../runtime/require-number.js';
import { logSoftmax, noGrad, scope, Tensor, topk } from '../tensor/index.js';
import type { Tokenizer } from '../text/index.js';
import { type Beam, type BeamRules, BeamTree, type Candidate } from './beam-tree.js';
import { penalizedScore, stepBans } from './host-rules.js';
import { biasOf, needsBias, SAMPLING, type SamplingOptions, SequenceSampling } from './sampling.js';
import { requireToken, type SamplingRules } from './sampling-options.js';

export type { Beam } from './beam-tree.js';

/**
 * How beamSearch() searches. Of the options of sampling those that change scores before a draw
 * count (penalties, biases, banned and allowed tokens, minTokens), on logprobs as in transformers.
 */
export interface BeamOptions extends SamplingOptions {
  /** Texts that are kept side by side, 1 or more. */
  numBeams: number;
  /** Tokens of a text at most. */
  maxNewTokens: number;
  /**
   * The sum of a text's logprobs is divided by its length to this power: above 0 longer texts gain.
   * Default 1.
   */
  lengthPenalty?: number;
  /**
   * True: over as soon as `numBeams` texts are finished. False: as soon as a better one is
   * unlikely, judged by the length so far. "never": judged by the longest that may come. Default
   * false.
   */
  earlyStopping?: boolean | 'never';
  /** How many texts are told, at most `numBeams`. Default 1. */
  n?: number;
  /** Tokens that end a text. Default: none. */
  stopTokens?: readonly number[];
  /** Ends the search. */
  signal?: AbortSignal | null;
  /** Makes tokens of badWords that are texts. */
  tokenizer?: Tokenizer | null;
}

const NAMES: OptionNames<BeamOptions> = {
  ...SAMPLING,
  ...{ numBeams: true, maxNewTokens: true, lengthPenalty: true, earlyStopping: true },
  ...{ n: true, stopTokens: true, signal: true, tokenizer: true },
};

const OP = 'beamSearch';

/** What was asked, checked. */
interface Search {
  rules: BeamRules;
  scoring: SamplingRules;
  n: number;
  signal: AbortSignal | null;
}

/**
 * The `n` best texts behind `prompt`, the best first, as transformers finds them with num_beams.
 * Takes the thread for a step at a time, and keeps keys and values of `numBeams` texts until it is
 * over. Rejects with DS_ARGUMENT for options that cannot be (and those that draw: beams are not
 * sampled), DS_LIMIT for a text longer than the model's longest, DS_NONFINITE for scores that are
 * no numbers, and with the signal's reason.
 */
export async function beamSearch(
  model: CausalLM,
  prompt: readonly number[],
  options: BeamOptions,
): Promise<Beam[]> {
  const search = readSearch(model, prompt, options);
  const run = new BeamRun(model, prompt, search);
  try {
    while (run.step()) {
      await turn();
      search.signal?.throwIfAborted();
    }
    return run.tree.found(search.n);
  } finally {
    run.dispose();
  }
}

function readSearch(model: CausalLM, prompt: readonly number[], options: BeamOptions): Search {
  const given = readOptions<BeamOptions>(OP, options, NAMES);
  const { numBeams, maxNewTokens, lengthPenalty = 1, earlyStopping = false, ...rest } = given;
  const { n = 1, stopTokens = [], signal = null, tokenizer = null, ...sampling } = rest;
  requireInteger(`${OP} numBeams`, numBeams, 1);
  requireInteger(`${OP} n`, n, 1);
  requireInteger(`${OP} maxNewTokens`, maxNewTokens, 1);
  if (n > numBeams) throw refused('n', `at most numBeams, ${numBeams}`, n);
  if (typeof earlyStopping !== 'boolean' && earlyStopping !== 'never') {
    throw refused('earlyStopping', 'true, false or "never"', earlyStopping);
  }
  requireNoDraw(sampling);
  const vocabulary = { vocabSize: model.vocabSize, tokenizer };
  const { rules: scoring } = new SequenceSampling(OP, { seed: 0, ...sampling }, vocabulary);
  for (const token of [...prompt, ...stopTokens]) {
    requireToken(OP, 'tokens', token, model.vocabSize);
  }
  requireLength(prompt.length, maxNewTokens, model.maxSeq);
  const ends = new Set(stopTokens);
  const penalty = requireFinite(`${OP} lengthPenalty`, lengthPenalty);
  return {
    rules: { numBeams, maxNewTokens, lengthPenalty: penalty, earlyStopping, ends },
    ...{ scoring, n, signal },
  };
}

/** What would draw, or change how: none of it has a meaning here. */
function requireNoDraw(sampling: SamplingOptions): void {
  const { temperature = 1, topK = 0, topP = 1, minP = 0, seed, logprobs } = sampling;
  const asked = { temperature, topK, topP, minP, seed, logprobs };
  const idle = { temperature: [0, 1], topK: [0], topP: [1], minP: [0], seed: [], logprobs: [] };
  for (const [name, value] of Object.entries(asked)) {
    const fine: readonly unknown[] = idle[name as keyof typeof idle];
    if (value === undefined || fine.includes(value)) continue;
    const hint = 'A beam search takes the likeliest texts: leave it out, or numBeams.';
    throw refused(name, 'no such option with beams', value, hint);
  }
}

function requireLength(prompt: number, more: number, maxSeq: number): void {
  if (prompt > 0 && prompt + more <= maxSeq) return;
  throw new DsError({
    code: prompt > 0 ? 'DS_LIMIT' : 'DS_ARGUMENT',
    op: `${OP} prompt`,
    expected: `a token or more, and at most ${maxSeq} with the new ones`,
    got: `a prompt of ${prompt} and ${more} new ones`,
  });
}

/** A search under way; the tensors are its own. */
class BeamRun {
  readonly tree: BeamTree;
  private caches: KeyValueCache[] = [];
  private readonly bias: Tensor | null;
  private isFirst = true;

  constructor(
    private readonly model: CausalLM,
    private readonly prompt: readonly number[],
    private readonly search: Search,
  ) {
    this.tree = new BeamTree(search.rules);
    const { scoring } = search;
    const bias = needsBias(scoring) ? biasOf(scoring, model.vocabSize) : null;
    this.bias = bias && Tensor.from(bias, { device: this.device }).keep();
  }

  /** One token more of every text; false when the search is over. */
  step(): boolean {
    const parents = noGrad(() =>
      scope(() => {
        const logprobs = this.scored(this.isFirst ? this.begin() : this.read());
        return this.tree.advance(this.likeliest(logprobs));
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

  /** Reads the prompt once; all texts have its keys and values. */
  private begin(): Tensor {
    const { model, prompt } = this;
    const { numBeams, maxNewTokens } = this.search.rules;
    const read = model.caches(1, prompt.length);
    const logits = model.next(rows([prompt], this.device), read);
    this.caches = model.caches(numBeams, prompt.length + maxNewTokens);
    this.caches.forEach((cache, layer) => {
      const own = read[layer] as KeyValueCache;
      for (const name of ['keys', 'values'] as const) {
        const shared = own[name].expand([numBeams, ...own[name].shape.slice(1)]);
        kernels.copy({ in: shared, out: cache[name].narrow(2, 0, own.length) });
        cache[name].keep();
      }
      cache.length = own.length;
    });
    return logits.expand([numBeams, 1, logits.size(2)]);
  }

  private read(): Tensor {
    const last = this.tree.running.map(({ tokens }) => [tokens.at(-1) as number]);
    return this.model.next(rows(last, this.device), this.caches);
  }

  /** Sums of logprobs [numBeams * V] of the texts with each token behind them. */
  private scored(logits: Tensor): Tensor {
    const { running } = this.tree;
    const vocabulary = this.model.vocabSize;
    const scores = logits.reshape([running.length, logits.size(2)]).narrow(1, 0, vocabulary);
    let logprobs = logSoftmax(scores.to('f32'), -1);
    if (this.bias) logprobs = logprobs.add(this.bias);
    logprobs = this.adjusted(logprobs);
    const totals = Float32Array.from(running, ({ total }) => total);
    const before = Tensor.from(totals, { shape: [running.length, 1], device: this.device });
    return logprobs.add(before).reshape([1, running.length * vocabulary]);
  }

  /** Penalties and bans: scores of the few tokens that they are about go by the host. */
  private adjusted(logprobs: Tensor): Tensor {
    const { scoring, rules } = this.search;
    const edits = this.tree.running.map(({ tokens }) => {
      const bans = stepBans(scoring, { prompt: this.prompt, tokens, ends: rules.ends });
      const penalized = penalizedScore(scoring, this.prompt, tokens);
      return { bans, penalized, tokens: [...new Set([...penalized.tokens, ...bans])] };
    });
    const most = Math.max(...edits.map(({ tokens }) => tokens.length));
    if (most === 0) return logprobs;
    // Rows of one length: the first token stands for what is missing, and is written again.
    const places = edits.map(({ tokens }) =>
      Array.from({ length: most }, (_, i) => tokens[i] ?? tokens[0] ?? 0),
    );
    const index = rows(places, this.device);
    const old = logprobs.gather(1, index).toArray();
    const edited = edits.flatMap(({ bans, penalized }, beam) =>
      (places[beam] as number[]).map((token, i) =>
        bans.has(token)
          ? Number.NEGATIVE_INFINITY
          : penalized.of(token, old[beam * most + i] as number),
      ),
    );
    const shape = [edits.length, most];
    const src = Tensor.from(Float32Array.from(edited), { shape, device: this.device });
    return logprobs.scatter(1, index, src);
  }

  private likeliest(totals: Tensor): Candidate[] {
    const vocabulary = this.model.vocabSize;
    const { values, indices } = topk(totals, Math.min(this.tree.breadth, totals.size(1)));
    const places = indices.toArray();
    return values.toArray().map((total, i) => {
      if (Number.isNaN(total)) throw notFinite();
      const place = places[i] as number;
      return { beam: Math.floor(place / vocabulary), token: place % vocabulary, total };
    });
  }

  /** Every text gets the keys and values of the one that it continues. */
  private reorder(parents: readonly number[]): void {
    const moves = parents.flatMap((from, to) => (from === to ? [] : [{ from, to }]));
    for (const cache of this.caches) {
      for (const all of [cache.keys, cache.values]) {
        const known = all.narrow(2, 0, cache.length);
        const copies = moves.map(({ from }) => known.narrow(0, from, 1).clone());
        moves.forEach(({ to }, i) => {
          kernels.copy({ in: copies[i] as Tensor, out: known.narrow(0, to, 1) });
        });
      }
    }
  }
}

function rows(tokens: readonly (readonly number[])[], device: Device): Tensor {
  const shape = [tokens.length, tokens[0]?.length ?? 0];
  return Tensor.from(Int32Array.from(tokens.flat()), { shape, device });
}

function notFinite(): DsError {
  const [expected, got] = ['finite scores of the next token', 'NaN'];
  return new DsError({ code: 'DS_NONFINITE', op: OP, expected, got });
}

function refused(name: string, expected: string, got: unknown, hint = ''): DsError {
  return new DsError({
    code: 'DS_ARGUMENT',
    op: `${OP} ${name}`,
    expected,
    got: formatValue(got),
    hint,
  });
}

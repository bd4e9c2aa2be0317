// Sampler: the next tokens of many sequences from their scores, on the device.
import { DsError } from '../errors.js';
import { Buffer } from '../runtime/buffer.js';
import type { Device } from '../runtime/device.js';
import { formatValue } from '../runtime/format-value.js';
import * as kernels from '../runtime/kernels.generated.js';
import { requireInteger } from '../runtime/require-number.js';
import { describe, type View } from '../runtime/view.js';
import { noGrad, Tensor, topk } from '../tensor/index.js';
import { type Ban, BanList, FOREVER } from './ban-list.js';
import { RowTable } from './row-table.js';
import {
  requireToken,
  type SamplingOptions,
  type SamplingRules,
  SequenceSampling,
} from './sampling-options.js';
import { Uploads } from './uploads.js';

export {
  SAMPLING,
  type SamplingOptions,
  SequenceSampling,
  type Vocabulary,
} from './sampling-options.js';

/** What a sampler has chosen; the tensors are the caller's, or its scope's. */
export interface Sampled {
  /** [S] i32: a token, -1 where a score was no number, -2 where nothing was left to choose. */
  readonly tokens: Tensor;
  /** [S, 2] f32: the token's logprob, and the log-sum-exp of its row; null where nobody asked. */
  readonly logprobs: Tensor | null;
  /** The likeliest tokens, the likeliest first, as many as any row asked for; null for none. */
  readonly top: SampledTop | null;
  /** How many of the likeliest tokens each row has asked for; null where it wants no logprob. */
  readonly asked: readonly (number | null)[];
}

/** [S, N] each. */
export interface SampledTop {
  /** i64. */
  readonly tokens: Tensor;
  /** Their scores as they came. */
  readonly scores: Tensor;
}

/** How likely a token was, by the natural logarithm. */
export interface TokenLogprob {
  /** Its id. */
  readonly token: number;
  /** The logarithm of its probability. */
  readonly logprob: number;
  /** The likeliest tokens in their order, as many as were asked for. */
  readonly top: readonly { readonly token: number; readonly logprob: number }[];
}

/** A sequence that does not begin with its prompt alone. */
export interface SequenceState {
  /** Tokens that were sampled before: the sequence comes back. */
  generated?: readonly number[];
  /** Tokens that end it, which `minTokens` bans. */
  ends?: readonly number[];
}

/** Tokens that a slot remembers, numbers in its rows: csrc/ops/sample.h. */
const RECENT = 64;
const [SETTINGS, NUMBERS] = [6, 7];
/** Columns of numbers before top_k, the seed and the rows of tables. */
const NO_ROW = -1;

/** What the host knows of a slot. */
interface Slot {
  readonly rules: SamplingRules;
  readonly countsRow: number;
  readonly biasRow: number;
}

/**
 * Keeps what sampling needs of each sequence on the device, in as many slots as sequences may run
 * at a time: rules, position, recent tokens, and (where rules ask for them) counts and biases of
 * all tokens, 4 bytes a token each. A draw depends on the scores, the sequence's seed and its
 * position alone, not on the slot or on what is sampled beside it, and is the same on every device.
 */
export class Sampler {
  private readonly settings: Buffer;
  private readonly numbers: Buffer;
  private readonly recent: Buffer;
  private readonly rows: Buffer;
  private readonly uploads: Uploads;
  private readonly counts: RowTable;
  private readonly biases: RowTable;
  private readonly bans: BanList;
  private readonly taken: (Slot | null)[];
  /** The slots that `rows` holds. */
  private uploaded: readonly number[] = [];

  /** Throws DS_ARGUMENT, DS_OUT_OF_MEMORY. */
  constructor(
    readonly vocabSize: number,
    readonly device: Device,
    readonly slots: number,
  ) {
    requireInteger('Sampler vocabSize', vocabSize, 1);
    requireInteger('Sampler slots', slots, 1);
    const table = (width: number) => Buffer.allocate(device, slots * width * 4);
    this.settings = table(SETTINGS);
    this.numbers = table(NUMBERS);
    this.recent = table(RECENT);
    this.rows = table(1);
    this.uploads = new Uploads(device);
    this.counts = new RowTable(this.uploads, 'i32', vocabSize);
    this.biases = new RowTable(this.uploads, 'f32', vocabSize);
    this.bans = new BanList(this.uploads);
    this.taken = new Array<Slot | null>(slots).fill(null);
  }

  /**
   * A sequence takes a slot that nobody has. Its next token follows `prompt` and
   * `state.generated`. Throws DS_ARGUMENT that names the slot, the token or the option.
   */
  enter(
    slot: number,
    prompt: readonly number[],
    options: SamplingOptions | SequenceSampling = {},
    state: SequenceState = {},
  ): void {
    if (this.slot(slot) !== null) {
      throw refused(`slot ${slot}`, 'a slot that no sequence has', 'one that is taken');
    }
    const { generated = [], ends = [] } = state;
    for (const token of [...prompt, ...generated, ...ends]) {
      requireToken('Sampler.enter', 'tokens', token, this.vocabSize);
    }
    const sampling =
      options instanceof SequenceSampling
        ? options
        : new SequenceSampling('Sampler.enter', options, this);
    const { rules } = sampling;
    const biasRow = needsBias(rules) ? this.biases.take(biasOf(rules, this.vocabSize)) : NO_ROW;
    const countsRow = needsCounts(rules)
      ? this.counts.take(countsOf(prompt, generated, this.vocabSize))
      : NO_ROW;
    this.taken[slot] = { rules, countsRow, biasRow };
    const position = prompt.length + generated.length;
    const key = [...sampling.seed, countsRow, biasRow];
    const topK = rules.topK >= this.vocabSize ? 0 : rules.topK;
    const numbers = Int32Array.from([position, generated.length, topK, ...key]);
    this.uploads.write(this.numbers, slot * NUMBERS * 4, numbers);
    this.uploads.write(this.settings, slot * SETTINGS * 4, settingsOf(rules));
    this.uploads.write(this.recent, slot * RECENT * 4, recentOf(prompt, generated));
    this.bans.set(slot, bansOf(rules, ends));
  }

  /** The sequence has ended, or waits without a slot. Throws DS_ARGUMENT for a slot without one. */
  leave(slot: number): void {
    const { countsRow, biasRow } = this.requireTaken(slot);
    this.counts.give(countsRow);
    this.biases.give(biasRow);
    this.bans.set(slot, []);
    this.taken[slot] = null;
  }

  /**
   * The next token of the sequence in slots[i] from row i of `scores`, [S, V] in f32, f16 or bf16,
   * which stay as they are; the sequences are one token longer afterwards. They are written to
   * `into`, [S] i32, or else to a tensor of their own. Nothing waits for the device. Throws
   * DS_SHAPE, DS_DTYPE, DS_ARGUMENT for slots without a sequence or named twice.
   */
  sample(scores: Tensor, slots: readonly number[], into: Tensor | null = null): Sampled {
    const rows = this.rowsOf(scores, slots);
    const asked = slots.map((slot) => this.requireTaken(slot).rules.logprobs);
    return noGrad(() => {
      const count = slots.length;
      const tokens = into ?? Tensor.empty([count], 'i32', this.device);
      let most = -1;
      for (const wanted of asked) if (wanted !== null && wanted > most) most = wanted;
      const logprobs = most >= 0 ? Tensor.empty([count, 2], 'f32', this.device) : null;
      kernels.sampleTokens({
        ...{ scores, slots: rows, tokens, logprobs },
        settings: this.table(this.settings, 'f32', SETTINGS),
        numbers: this.table(this.numbers, 'i32', NUMBERS),
        recent: this.table(this.recent, 'i32', RECENT),
        counts: this.counts.view,
        bias: this.biases.view,
        bans: this.bans.view,
      });
      return { tokens, logprobs, top: most > 0 ? likeliest(scores, most) : null, asked };
    });
  }

  /** What was sampled, on the host; waits for the device. See sampledTokens(). */
  read(sampled: Sampled): SampledToken[] {
    return sampledTokens(
      sampled,
      sampledTensors(sampled).map((tensor) => tensor.toArray()),
    );
  }

  /** Gives the memory back; the sampler cannot be used any more. */
  dispose(): void {
    for (const buffer of [this.settings, this.numbers, this.recent, this.rows]) buffer.release();
    for (const table of [this.counts, this.biases, this.bans]) table.dispose();
    this.uploads.dispose();
    this.taken.fill(null);
  }

  private slot(slot: number): Slot | null {
    const found = this.taken[slot];
    if (found !== undefined) return found;
    throw refused('slot', `a slot from 0 to ${this.slots - 1}`, formatValue(slot));
  }

  private requireTaken(slot: number): Slot {
    const found = this.slot(slot);
    if (found) return found;
    throw refused(`slot ${slot}`, 'a slot that a sequence has', 'none: enter() comes first');
  }

  private rowsOf(scores: Tensor, slots: readonly number[]): View {
    if (scores.ndim !== 2 || scores.size(0) !== slots.length || scores.size(1) !== this.vocabSize) {
      throw new DsError({
        code: 'DS_SHAPE',
        op: 'Sampler.sample',
        expected: `scores [${slots.length}, ${this.vocabSize}], a row for each slot`,
        got: describe(scores),
      });
    }
    const { uploaded } = this;
    const isUploaded =
      slots.length === uploaded.length && slots.every((slot, i) => slot === uploaded[i]);
    if (!isUploaded && slots.length > 0) {
      if (new Set(slots).size !== slots.length) {
        throw refused('slots', 'every slot once', formatValue([...slots]));
      }
      this.uploads.write(this.rows, 0, Int32Array.from(slots));
      this.uploaded = [...slots];
    }
    return { buffer: this.rows, dtype: 'i32', shape: [slots.length], offset: 0, strides: [1] };
  }

  private table(buffer: Buffer, dtype: 'f32' | 'i32', width: number): View {
    return { buffer, dtype, shape: [this.slots, width], offset: 0, strides: [width, 1] };
  }
}

/** What sampledTokens() wants of what was sampled, in its order. */
export function sampledTensors({ tokens, logprobs, top }: Sampled): Tensor[] {
  const likeliest = top ? [top.tokens.contiguous(), top.scores.contiguous()] : [];
  return [tokens, ...(logprobs ? [logprobs] : []), ...likeliest];
}

/**
 * A row's token each, of the values of sampledTensors(). `logprob` is null where the sequence did
 * not ask. A token below 0 is none: samplingError() says why.
 */
export function sampledTokens(
  { logprobs, top, asked }: Pick<Sampled, 'logprobs' | 'top' | 'asked'>,
  lists: readonly (readonly number[])[],
): SampledToken[] {
  const [tokens = [], own] = lists;
  if (!logprobs || !own) return tokens.map((token) => ({ token, logprob: null }));
  const [ids = [], scores = []] = lists.slice(2);
  const width = top ? top.tokens.size(1) : 0;
  return tokens.map((token, row) => {
    const count = asked[row] ?? null;
    if (count === null || token < 0) return { token, logprob: null };
    const [logprob, sum] = own.slice(2 * row, 2 * row + 2) as [number, number];
    const likely = Array.from({ length: count }, (_, k) => {
      const at = row * width + k;
      return { token: ids[at] as number, logprob: (scores[at] as number) - sum };
    });
    return { token, logprob: { token, logprob, top: likely } };
  });
}

/** One token on the host. */
export interface SampledToken {
  readonly token: number;
  readonly logprob: TokenLogprob | null;
}

/**
 * Why a row has no token: DS_NONFINITE for a score that is no number (or +Infinity), DS_ARGUMENT
 * where the options leave nothing; null for a token.
 */
export function samplingError(op: string, token: number): DsError | null {
  if (token >= 0) return null;
  if (token === -1) {
    const hint = 'The weights or activations overflow: try bf16 or fp32, or check the checkpoint.';
    const [expected, got] = ['finite scores of the next token', 'NaN or +Infinity'];
    return new DsError({ code: 'DS_NONFINITE', op, expected, got, hint });
  }
  const hint =
    'allowedTokens, badWords, logitBias and minTokens ban all there are, or all scores are -Infinity.';
  const [expected, got] = ['a token that may come next', 'none'];
  return new DsError({ code: 'DS_ARGUMENT', op, expected, got, hint });
}

function likeliest(scores: Tensor, count: number): SampledTop {
  const { values, indices } = topk(scores, count);
  return { tokens: indices, scores: values };
}

/** Whether tokens have biases, or only some are allowed. */
export const needsBias = ({ logitBias, allowedTokens }: SamplingRules): boolean =>
  logitBias.length > 0 || allowedTokens !== null;

const needsCounts = (rules: SamplingRules): boolean =>
  rules.repetitionPenalty !== 1 || rules.presencePenalty !== 0 || rules.frequencyPenalty !== 0;

/** In the order of csrc/ops/sample.h. */
function settingsOf(rules: SamplingRules): Float32Array {
  const { temperature, topP, minP, repetitionPenalty, presencePenalty, frequencyPenalty } = rules;
  return Float32Array.of(
    ...[temperature, topP, minP, repetitionPenalty, presencePenalty, frequencyPenalty],
  );
}

/** What is added to the score of each token. */
export function biasOf(
  { logitBias, allowedTokens }: SamplingRules,
  vocabSize: number,
): Float32Array {
  const bias = new Float32Array(vocabSize);
  if (allowedTokens) {
    bias.fill(Number.NEGATIVE_INFINITY);
    for (const token of allowedTokens) bias[token] = 0;
  }
  for (const [token, value] of logitBias) bias[token] = (bias[token] as number) + value;
  return bias;
}

/** Twice the times a token was sampled, plus 1 if the prompt has it. */
function countsOf(
  prompt: readonly number[],
  generated: readonly number[],
  vocabSize: number,
): Int32Array {
  const counts = new Int32Array(vocabSize);
  for (const token of generated) counts[token] = (counts[token] as number) + 2;
  for (const token of prompt) counts[token] = (counts[token] as number) | 1;
  return counts;
}

/** The last tokens, each at its position modulo their number. */
function recentOf(prompt: readonly number[], generated: readonly number[]): Int32Array {
  const recent = new Int32Array(RECENT).fill(-1);
  const length = prompt.length + generated.length;
  for (let position = Math.max(0, length - RECENT); position < length; ++position) {
    const token = prompt[position] ?? generated[position - prompt.length];
    recent[position % RECENT] = token as number;
  }
  return recent;
}

function bansOf({ badWords, minTokens }: SamplingRules, ends: readonly number[]): Ban[] {
  const words = badWords.map((tokens) => ({ tokens, until: FOREVER }));
  const until = Math.min(minTokens, FOREVER);
  const early = until > 0 ? ends.map((end) => ({ tokens: [end], until })) : [];
  return [...words, ...early];
}

function refused(name: string, expected: string, got: string): DsError {
  return new DsError({ code: 'DS_ARGUMENT', op: `Sampler ${name}`, expected, got });
}

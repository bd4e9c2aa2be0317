// Sampler: samples the next tokens of many sequences on the device.

import { DsError } from '../errors.js';
import { Buffer } from '../runtime/buffer.js';
import type { Device } from '../runtime/device.js';
import { formatValue } from '../runtime/format-value.js';
import type { Matcher } from '../runtime/grammar.js';
import * as kernels from '../runtime/kernels.generated.js';
import { requireInteger } from '../runtime/require-number.js';
import { leading, required } from '../runtime/required.js';
import { describe, type View } from '../runtime/view.js';
import { noGrad, Tensor, topk } from '../tensor/index.js';
import { type Ban, BanList } from './ban-list.js';
import { computeLogprobs, type LogprobsRule } from './logprobs-rule.js';
import { MaskTable } from './mask-table.js';
import { RowTable } from './row-table.js';
import {
  biasValues,
  countValues,
  listBans,
  needsBias,
  needsCounts,
  RECENT,
  recentValues,
  settingsValues,
} from './sampler-rows.js';
import { requireToken, type SamplingOptions, type SamplingRules } from './sampling-options.js';
import { SequenceSampling } from './sequence-sampling.js';
import { Uploads } from './uploads.js';

export {
  SAMPLING,
  type SamplingOptions,
  type Vocabulary,
} from './sampling-options.js';
export { SequenceSampling } from './sequence-sampling.js';

/** Results of a sampling call. The tensors belong to the caller or its scope. */
export interface SamplingResult {
  /** [S] i32: a token, -1 for a score that is not finite, -2 if no candidate is left. */
  readonly tokens: Tensor;
  /**
   * [S, 2] f32: the token's logprob, and the log-sum-exp of its row; null if no row needs logprobs.
   */
  readonly logprobs: Tensor | null;
  /**
   * The likeliest tokens, the likeliest first; as many as the largest request. Null without
   * requests.
   */
  readonly top: TopScores | null;
  /** Number of likeliest tokens for each row; null for a row without logprobs. */
  readonly requestedTop: readonly (number | null)[];
}

/** [S, N] each. */
interface TopScores {
  /** i64. */
  readonly tokens: Tensor;
  /** Raw scores. */
  readonly scores: Tensor;
}

/** The natural logarithm of a token's probability. */
export interface TokenLogprob {
  /** Token id. */
  readonly token: number;
  /** Natural logarithm of the token's probability. */
  readonly logprob: number;
  /** The likeliest tokens in descending order, as many as requested. */
  readonly top: readonly { readonly token: number; readonly logprob: number }[];
}

/** State of a sequence beyond its prompt. */
interface SequenceState {
  /** Tokens sampled before: the sequence resumes. */
  generated?: readonly number[];
  /** End tokens, which `minTokens` bans. */
  ends?: readonly number[];
  /** True if fillMasks() gives the sequence a mask before each token. */
  isMasked?: boolean;
}

/** A slot with a format, the matcher of its text, and the proposals after it. */
interface MaskedSlot {
  readonly slot: number;
  readonly matcher: Matcher;
  readonly proposals: readonly number[];
}

/** Columns of the tables of a slot, as in csrc/ops/sample.h. */
const [SETTINGS, NUMBERS] = [6, 8];
/** Row index in the optional tables (counts, biases, masks) of a slot without a row. */
const NO_ROW = -1;

/** Host state of a slot. */
interface Slot {
  readonly rules: SamplingRules;
  readonly seed: SequenceSampling['seed'];
  readonly bans: readonly Ban[];
  /** Index of the token that lane 0 samples next, in the whole sequence. */
  position: number;
  readonly countsRow: number;
  readonly biasRow: number;
  /** A row per lane; empty without a format. */
  readonly maskRows: readonly number[];
}

/**
 * Samples on the device for a fixed number of slots, one per running sequence. A slot holds rules,
 * position and recent tokens. If its rules need them, it also holds counts and biases of all tokens
 * (4 bytes per token each). A draw depends only on the scores, the sequence's seed and its
 * position. It does not depend on the slot or the batch, and is equal on every device.
 *
 * A slot has one row of the device tables per lane. Lane 0 samples the next token of the sequence.
 * After follow(), lane j samples the token after j proposals. Since a draw depends only on its
 * position, the tokens equal those of one step per token.
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
  private readonly masks: MaskTable;
  private readonly slotStates: (Slot | null)[];
  /** The slot indices in the device buffer `rows`. */
  private uploaded: readonly number[] = [];

  /** Throws DS_ARGUMENT, DS_OUT_OF_MEMORY. */
  constructor(
    readonly vocabSize: number,
    readonly device: Device,
    readonly slots: number,
    private readonly logprobs: LogprobsRule = {},
    /** 1 + the most proposals of a sequence. */
    private readonly lanes = 1,
  ) {
    requireInteger('Sampler vocabSize', vocabSize, 1);
    requireInteger('Sampler slots', slots, 1);
    const table = (width: number) => Buffer.allocate(device, slots * lanes * width * 4);
    this.settings = table(SETTINGS);
    this.numbers = table(NUMBERS);
    this.recent = table(RECENT);
    this.rows = table(1);
    this.uploads = new Uploads(device);
    this.counts = new RowTable(this.uploads, 'i32', vocabSize);
    this.biases = new RowTable(this.uploads, 'f32', vocabSize);
    this.bans = new BanList(this.uploads);
    this.masks = new MaskTable(device, slots * lanes, vocabSize);
    this.slotStates = new Array<Slot | null>(slots).fill(null);
  }

  /**
   * Assigns a free slot to a sequence. Its next token follows `prompt` and `state.generated`.
   * Throws DS_ARGUMENT with the slot, the token or the option.
   */
  enter(
    slot: number,
    prompt: readonly number[],
    options: SamplingOptions | SequenceSampling = {},
    state: SequenceState = {},
  ): void {
    if (this.slot(slot) !== null) {
      throw refusedError(`slot ${slot}`, 'a free slot', 'a slot in use');
    }
    const { generated = [], ends = [], isMasked = false } = state;
    for (const token of [...prompt, ...generated, ...ends]) {
      requireToken('Sampler.enter tokens', token, this.vocabSize);
    }
    const sampling =
      options instanceof SequenceSampling
        ? options
        : new SequenceSampling('Sampler.enter', options, this);
    const { rules } = sampling;
    const biasRow = needsBias(rules) ? this.biases.take(biasValues(rules, this.vocabSize)) : NO_ROW;
    const countsRow = needsCounts(rules)
      ? this.counts.take(countValues(prompt, generated, this.vocabSize))
      : NO_ROW;
    const maskRows = Array.from({ length: isMasked ? this.lanes : 0 }, () => this.masks.take());
    const position = prompt.length + generated.length;
    const bans = listBans(rules, ends);
    const { seed } = sampling;
    const entered: Slot = { rules, seed, bans, position, countsRow, biasRow, maskRows };
    this.slotStates[slot] = entered;
    const { lanes } = this;
    const numbers = this.numbersRow(entered, [position, generated.length], 0);
    this.uploads.write(this.numbers, slot * lanes * NUMBERS * 4, Int32Array.from(numbers));
    const settings = settingsValues(rules);
    const all = Float32Array.from({ length: lanes * SETTINGS }, (_, i) =>
      required(settings[i % SETTINGS]),
    );
    this.uploads.write(this.settings, slot * lanes * SETTINGS * 4, all);
    this.uploads.write(this.recent, slot * lanes * RECENT * 4, recentValues(prompt, generated));
    for (let lane = 0; lane < lanes; ++lane) this.bans.set(slot * lanes + lane, bans);
  }

  /** Returns the position, in its whole sequence, of the token that the slot samples next. */
  positionOf(slot: number): number {
    return this.requireTaken(slot).position;
  }

  /**
   * Sets the lanes of a slot: lane j samples the token after `tokens` and j of the proposals.
   * `tokens` begin with `promptLength` tokens of the prompt.
   */
  follow(
    slot: number,
    tokens: readonly number[],
    promptLength: number,
    proposals: readonly number[],
  ): void {
    const state = this.requireTaken(slot);
    const count = 1 + proposals.length;
    if (count > this.lanes || state.countsRow !== NO_ROW) {
      const expected = `at most ${this.lanes - 1} proposals, and rules without penalties`;
      throw refusedError(`slot ${slot}`, expected, `${proposals.length} proposals`);
    }
    const first = slot * this.lanes;
    const numbers = Array.from({ length: count }, (_, ahead) => {
      const position = tokens.length + ahead;
      return this.numbersRow(state, [position, position - promptLength], ahead);
    });
    this.uploads.write(this.numbers, first * NUMBERS * 4, Int32Array.from(numbers.flat()));
    state.position = tokens.length;
    if (state.bans.length === 0) return;
    const recent = new Int32Array(count * RECENT);
    for (let ahead = 0; ahead < count; ++ahead) {
      recent.set(recentValues(tokens, proposals.slice(0, ahead)), ahead * RECENT);
    }
    this.uploads.write(this.recent, first * RECENT * 4, recent);
  }

  /** Returns a row of the table `numbers`. */
  private numbersRow(
    { rules, seed, countsRow, biasRow, maskRows }: Slot,
    [position, generated]: readonly [number, number],
    lane: number,
  ): number[] {
    const topK = rules.topK >= this.vocabSize ? 0 : rules.topK;
    const maskRow = maskRows[lane] ?? NO_ROW;
    return [position, generated, topK, ...seed, countsRow, biasRow, maskRow];
  }

  /** Frees the slot of a sequence. Throws DS_ARGUMENT for a free slot. */
  leave(slot: number): void {
    const { countsRow, biasRow, maskRows } = this.requireTaken(slot);
    this.counts.release(countsRow);
    this.biases.release(biasRow);
    for (const row of maskRows) this.masks.release(row);
    for (let lane = 0; lane < this.lanes; ++lane) this.bans.set(slot * this.lanes + lane, []);
    this.slotStates[slot] = null;
  }

  /**
   * Fills the masks of slots that entered with `isMasked`, on native threads, and enqueues their
   * upload. Lane j gets the mask after j proposals, up to a proposal that the matcher refuses. Call
   * it before each sample() of these slots. The matchers must not change before the promise
   * settles. Rejects with DS_LIMIT.
   */
  async fillMasks(slots: readonly MaskedSlot[]): Promise<void> {
    const followed = new Map<Matcher, number>();
    let open = slots.map((slot) => ({ ...slot, rows: this.requireTaken(slot.slot).maskRows }));
    let count = 0;
    try {
      for (let lane = 0; open.length > 0; ++lane) {
        const rows = open.map(({ matcher, rows }) => ({ matcher, row: required(rows[lane]) }));
        await this.masks.fill(rows);
        count = rows.reduce((max, { row }) => Math.max(max, row + 1), count);
        open = open.filter(({ matcher, proposals }) => {
          const next = proposals[lane];
          // A request that ended meanwhile has disposed its matcher.
          if (next === undefined || matcher.handle === 0 || !matcher.accept(next)) return false;
          followed.set(matcher, lane + 1);
          return true;
        });
      }
    } finally {
      for (const [matcher, tokens] of followed) if (matcher.handle !== 0) matcher.rollback(tokens);
    }
    this.masks.upload(count);
  }

  /**
   * Samples the next token of the sequence in slots[i] from row i of `scores`. Scores are [S, V] in
   * f32, f16 or bf16 and stay unchanged. Each sequence grows by one token. Tokens go to `into`, [S]
   * i32, or to a new tensor. `ahead` are the lanes of the rows; default: 0. The host does not wait.
   * Throws DS_SHAPE, DS_DTYPE, and DS_ARGUMENT for free slots and repeated lanes.
   */
  sample(
    scores: Tensor,
    slots: readonly number[],
    into: Tensor | null = null,
    ahead: readonly number[] = [],
  ): SamplingResult {
    const lanes = slots.map((slot, i) => slot * this.lanes + (ahead[i] ?? 0));
    const rows = this.uploadRows(scores, lanes);
    const requested = slots.map((slot) => this.requireTaken(slot).rules.logprobs);
    return noGrad(() => {
      const count = slots.length;
      const tokens = into ?? Tensor.empty([count], 'i32', this.device);
      let max = -1;
      for (const requestedCount of requested)
        if (requestedCount !== null && requestedCount > max) max = requestedCount;
      const logprobs = max >= 0 ? Tensor.empty([count, 2], 'f32', this.device) : null;
      kernels.sampleTokens({
        scores,
        slots: rows,
        tokens,
        logprobs,
        settings: this.tableView(this.settings, 'f32', SETTINGS),
        numbers: this.tableView(this.numbers, 'i32', NUMBERS),
        recent: this.tableView(this.recent, 'i32', RECENT),
        counts: this.counts.view,
        bias: this.biases.view,
        masks: this.masks.view,
        bans: this.bans.view,
      });
      for (const [i, slot] of slots.entries()) {
        if ((ahead[i] ?? 0) === 0) this.requireTaken(slot).position++;
      }
      const temperatures = slots.map((slot) => this.requireTaken(slot).rules.temperature);
      const logprobTensor =
        (logprobs && computeLogprobs(this.logprobs, scores, tokens, temperatures)) ?? logprobs;
      return {
        tokens,
        logprobs: logprobTensor,
        top: max > 0 ? topScores(scores, max) : null,
        requestedTop: requested,
      };
    });
  }

  /** Reads the results on the host and waits for the device. See sampledTokens(). */
  read(sampled: SamplingResult): SampledToken[] {
    return sampledTokens(
      sampled,
      sampledTensors(sampled).map((tensor) => tensor.toArray()),
    );
  }

  /** Releases the memory; the sampler is unusable afterwards. */
  dispose(): void {
    for (const buffer of [this.settings, this.numbers, this.recent, this.rows]) buffer.release();
    for (const table of [this.counts, this.biases, this.bans, this.masks]) table.dispose();
    this.uploads.dispose();
    this.slotStates.fill(null);
  }

  private slot(slot: number): Slot | null {
    const state = this.slotStates[slot];
    if (state !== undefined) return state;
    throw refusedError('slot', `a slot from 0 to ${this.slots - 1}`, formatValue(slot));
  }

  private requireTaken(slot: number): Slot {
    const state = this.slot(slot);
    if (state) return state;
    throw refusedError(`slot ${slot}`, 'a slot in use', 'a free slot; call enter() first');
  }

  private uploadRows(scores: Tensor, slots: readonly number[]): View {
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
        throw refusedError('slots', 'every slot once', formatValue([...slots]));
      }
      this.uploads.write(this.rows, 0, Int32Array.from(slots));
      this.uploaded = [...slots];
    }
    return { buffer: this.rows, dtype: 'i32', shape: [slots.length], offset: 0, strides: [1] };
  }

  private tableView(buffer: Buffer, dtype: 'f32' | 'i32', width: number): View {
    const shape = [this.slots * this.lanes, width];
    return { buffer, dtype, shape, offset: 0, strides: [width, 1] };
  }
}

/** Returns the tensors that sampledTokens() reads, in its order. */
export function sampledTensors({ tokens, logprobs, top }: SamplingResult): Tensor[] {
  const likeliest = top ? [top.tokens.contiguous(), top.scores.contiguous()] : [];
  return [tokens, ...(logprobs ? [logprobs] : []), ...likeliest];
}

/**
 * Returns the token of each row from the values of sampledTensors(). `logprob` is null if the
 * sequence did not request it. A negative token is an error code of samplingError().
 */
export function sampledTokens(
  { logprobs, top, requestedTop }: Pick<SamplingResult, 'logprobs' | 'top' | 'requestedTop'>,
  lists: readonly (readonly number[])[],
): SampledToken[] {
  const [tokens = [], own] = lists;
  if (!logprobs || !own) return tokens.map((token) => ({ token, logprob: null }));
  const [ids = [], scores = []] = lists.slice(2);
  const width = top ? top.tokens.size(1) : 0;
  return tokens.map((token, row) => {
    const count = requestedTop[row] ?? null;
    if (count === null || token < 0) return { token, logprob: null };
    const [logprob, sum] = leading(own.slice(2 * row, 2 * row + 2), 2);
    const likely = Array.from({ length: count }, (_, k) => {
      const at = row * width + k;
      return { token: required(ids[at]), logprob: required(scores[at]) - sum };
    });
    return { token, logprob: { token, logprob, top: likely } };
  });
}

/** A sampled token on the host. */
export interface SampledToken {
  readonly token: number;
  readonly logprob: TokenLogprob | null;
}

/**
 * Returns the error of a negative token; null for others. DS_NONFINITE: a score is NaN or
 * +Infinity. DS_ARGUMENT: the options exclude all tokens.
 */
export function samplingError(op: string, token: number): DsError | null {
  if (token >= 0) return null;
  if (token === -1) {
    const hint = 'The weights or activations overflow: try bf16 or fp32, or check the checkpoint.';
    const [expected, got] = ['finite scores of the next token', 'NaN or +Infinity'];
    return new DsError({ code: 'DS_NONFINITE', op, expected, got, hint });
  }
  const hint =
    'allowedTokens, badWords, logitBias, minTokens and format exclude all tokens, or all scores are -Infinity.';
  const [expected, got] = ['at least one candidate for the next token', '0 candidates'];
  return new DsError({ code: 'DS_ARGUMENT', op, expected, got, hint });
}

function topScores(scores: Tensor, count: number): TopScores {
  const { values, indices } = topk(scores, count);
  return { tokens: indices, scores: values };
}

function refusedError(name: string, expected: string, got: string): DsError {
  return new DsError({ code: 'DS_ARGUMENT', op: `Sampler ${name}`, expected, got });
}

// PairDataset: prompts with a chosen and a rejected answer, as tokens. Rows have TRL's keys: texts
// or messages, with or without a `prompt`.
import type { Dataset } from '../data/index.js';
import { DsError } from '../errors.js';
import type { Device } from '../runtime/device.js';
import { formatValue } from '../runtime/format-value.js';
import { type OptionNames, readOptions } from '../runtime/options.js';
import { dataError } from '../runtime/refused.js';
import { requireInteger } from '../runtime/require-number.js';
import { Tensor } from '../tensor/index.js';
import type { ChatMessage } from './chat-template.js';
import { inputsIn, messagesOf, type TemplateInputs } from './conversation.js';
import { locatedRows, type RowSource } from './located-rows.js';
import { IGNORED } from './row-encoder.js';
import type { LocatedRow, Row } from './row-reader.js';
import { readTokenizer } from './text-options.js';
import type { Tokenizer } from './tokenizer.js';

/** Options of PairDataset.open(). */
export interface PairOptions extends RowSource {
  /** Encodes texts. Its chat template formats messages. */
  tokenizer: Tokenizer | string;
  /** Maximum tokens of a prompt with an answer; longer answers lose their end. Default: 1024. */
  length?: number;
}

const OPTIONS: OptionNames<PairOptions> = {
  files: true,
  rows: true,
  tokenizer: true,
  length: true,
};

/** A pair as tokens: the prompt with each answer. */
export interface PairSample {
  /** Tokens of the prompt and the chosen answer. */
  chosen: Int32Array;
  /** Tokens of the prompt and the rejected answer. */
  rejected: Int32Array;
  /** Number of tokens of the prompt. */
  prompt: number;
  /** Log-probabilities of both answers by the reference; null if the row has none. */
  reference: readonly [chosen: number, rejected: number] | null;
}

/** A batch of P pairs: rows 0 to P - 1 have the chosen answers, the others the rejected ones. */
export interface PairBatch {
  /** Ids of the tokens, [2P, T] i32, padded at the right. */
  ids: Tensor;
  /** The next token inside an answer, else -100, [2P, T] i32. */
  targets: Tensor;
  /** The number of tokens of each answer, [2P] f32. */
  answered: Tensor;
  /** Log-probabilities by the reference, if the rows have them, [2P] f32. */
  reference?: Tensor;
}

/** Counts of the rows that open() read. */
export interface PairReport {
  /** Pairs in the dataset. */
  pairs: number;
  /** Dropped rows: the prompt fills `length`. */
  dropped: number;
  /** Pairs with an answer that lost its end. */
  cut: number;
}

/** TRL's keys of log-probabilities by the reference. */
const REFERENCE = ['ref_chosen_logps', 'ref_rejected_logps'] as const;

/** Pairs of answers, in memory as tokens. open() creates it. */
export class PairDataset implements Dataset<PairSample> {
  /** Number of pairs. */
  readonly length: number;

  private constructor(
    private readonly samples: readonly PairSample[],
    /** Counts of the rows that open() read. */
    readonly report: PairReport,
  ) {
    this.length = samples.length;
  }

  /** Whether the rows have log-probabilities by the reference. */
  get hasReference(): boolean {
    return this.samples.every(({ reference }) => reference !== null);
  }

  /**
   * Reads rows of {prompt, chosen, rejected}, or of {chosen, rejected} with a common beginning.
   * Values are texts or lists of messages. If a prompt fills `length`, the row is dropped. Throws
   * DS_DATA with file and line for other rows, and if no row is left; DS_ARGUMENT.
   */
  static async open(given: PairOptions): Promise<PairDataset> {
    const op = 'PairDataset.open';
    const { tokenizer: named, length = 1024, ...source } = readOptions(op, given, OPTIONS);
    const tokenizer = readTokenizer(`${op} tokenizer`, named);
    requireInteger(`${op} length`, length, 2);
    const report: PairReport = { pairs: 0, dropped: 0, cut: 0 };
    const samples: PairSample[] = [];
    for (const located of await locatedRows(op, source)) {
      const whole = encode(tokenizer, located);
      if (whole.prompt >= length) {
        report.dropped += 1;
        continue;
      }
      const sides = [whole.chosen, whole.rejected] as const;
      if (sides.some((ids) => ids.length > length)) report.cut += 1;
      const [chosen, rejected] = sides.map((ids) => ids.subarray(0, length));
      samples.push({ ...whole, chosen: chosen as Int32Array, rejected: rejected as Int32Array });
    }
    report.pairs = samples.length;
    if (samples.length > 0) return new PairDataset(samples, report);
    const got =
      report.dropped > 0 ? `${report.dropped} prompts of at least ${length} tokens` : 'none';
    throw dataError(op, 'rows with a chosen and a rejected answer', got);
  }

  /** Returns the pair `index`. Throws DS_INDEX. */
  get(index: number): PairSample {
    const sample = this.samples[index];
    if (sample) return sample;
    const expected = `a pair of [0, ${this.length})`;
    throw new DsError({ code: 'DS_INDEX', op: 'PairDataset.get', expected, got: `${index}` });
  }
}

/** The prompt and both answers of a row, as texts or as messages. */
interface Sides<Part> {
  readonly prompt: Part;
  readonly chosen: Part;
  readonly rejected: Part;
}

function encode(tokenizer: Tokenizer, { row, location }: LocatedRow): PairSample {
  const { prompt, chosen, rejected } = row;
  const parts =
    prompt === undefined || prompt === null ? [chosen, rejected] : [prompt, chosen, rejected];
  const reference = referenceIn(row, location);
  if (parts.every((one) => typeof one === 'string')) {
    return { ...ofTexts(tokenizer, textsIn(row)), reference };
  }
  if (parts.every(Array.isArray)) {
    const sides = messagesIn(row, location);
    return { ...ofMessages(tokenizer, sides, inputsIn(row, location), location), reference };
  }
  const expected = '"chosen" and "rejected" (and "prompt") as texts, or as lists of messages';
  throw dataError(location(), expected, `a row with ${Object.keys(row).slice(0, 8).join(', ')}`);
}

function referenceIn(row: Row, location: () => string): PairSample['reference'] {
  const [chosen, rejected] = REFERENCE.map((key) => row[key]);
  if (chosen === undefined && rejected === undefined) return null;
  if (Number.isFinite(chosen) && Number.isFinite(rejected)) {
    return [chosen as number, rejected as number];
  }
  throw dataError(
    location(),
    `numbers in ${REFERENCE.join(' and ')}`,
    formatValue([chosen, rejected]),
  );
}

/**
 * Splits the texts of a row. The default prompt is the common beginning, without a space at its
 * end.
 */
function textsIn({ prompt, chosen, rejected }: Row): Sides<string> {
  const [w, l] = [chosen, rejected] as [string, string];
  if (typeof prompt === 'string') return { prompt, chosen: w, rejected: l };
  let same = 0;
  while (same < w.length && same < l.length && w[same] === l[same]) same += 1;
  if (same === w.length && same === l.length) same = Math.max(0, w.lastIndexOf(' '));
  if (w[same - 1] === ' ') same -= 1;
  return { prompt: w.slice(0, same), chosen: w.slice(same), rejected: l.slice(same) };
}

type Messages = readonly ChatMessage[];

function messagesIn({ prompt, chosen, rejected }: Row, location: () => string): Sides<Messages> {
  const [w, l] = [chosen, rejected].map((one) => messagesOf(one, location)) as [Messages, Messages];
  if (prompt !== undefined && prompt !== null) {
    return { prompt: messagesOf(prompt, location), chosen: w, rejected: l };
  }
  const most = Math.min(w.length, l.length) - 1;
  const differs = (one: ChatMessage, i: number): boolean =>
    i >= most || JSON.stringify(one) !== JSON.stringify(l[i]);
  const found = w.findIndex(differs);
  const same = Math.max(0, found);
  return { prompt: w.slice(0, same), chosen: w.slice(same), rejected: l.slice(same) };
}

function ofTexts(tokenizer: Tokenizer, { prompt, chosen, rejected }: Sides<string>) {
  const before = tokenizer.encode(prompt);
  const side = (answer: string): Int32Array => {
    const whole = tokenizer.encode(prompt + answer);
    // If a token crosses the border between prompt and answer, both are encoded separately.
    const ids = startsWith(whole, before)
      ? [...whole]
      : [...before, ...tokenizer.encode(answer, { addSpecialTokens: false })];
    const { eosId } = tokenizer;
    if (eosId !== null && ids.at(-1) !== eosId) ids.push(eosId);
    return Int32Array.from(ids);
  };
  return { chosen: side(chosen), rejected: side(rejected), prompt: before.length };
}

function ofMessages(
  tokenizer: Tokenizer,
  { prompt, chosen, rejected }: Sides<Messages>,
  inputs: TemplateInputs,
  location: () => string,
) {
  const written = (messages: Messages, addGenerationPrompt: boolean): Int32Array => {
    try {
      return tokenizer.applyChatTemplate(messages, { ...inputs, addGenerationPrompt }).ids;
    } catch (cause) {
      const { message } = cause as Error;
      throw dataError(location(), 'messages that the chat template takes', message);
    }
  };
  const before = written(prompt, true);
  const side = (answer: Messages): Int32Array => {
    const whole = written([...prompt, ...answer], false);
    if (startsWith(whole, before)) return whole;
    const expected = 'a chat template that writes a prompt alike with and without its answer';
    const hint = 'Set another chat template, or write prompt, chosen and rejected as texts.';
    throw dataError(location(), expected, 'other tokens of the prompt', hint);
  };
  return { chosen: side(chosen), rejected: side(rejected), prompt: before.length };
}

const startsWith = (whole: Int32Array, before: Int32Array): boolean =>
  whole.length >= before.length && before.every((id, i) => whole[i] === id);

/** Whether `sample` comes from a PairDataset. */
export function isPairSample(sample: unknown): sample is PairSample {
  const { chosen, rejected, prompt } = (sample ?? {}) as Record<string, unknown>;
  return (
    chosen instanceof Int32Array && rejected instanceof Int32Array && typeof prompt === 'number'
  );
}

/**
 * Returns a function for DataLoader's `collate`: it pads pairs with `pad`. The caller owns the
 * tensors. Throws DS_ARGUMENT; DS_DATA if only some pairs have log-probabilities of the reference.
 */
export function collatePairs(pad: number): (samples: PairSample[], device: Device) => PairBatch {
  requireInteger('text.collatePairs pad', pad, 0);
  return (samples, device) => {
    const sides = [
      ...samples.map(({ chosen }) => chosen),
      ...samples.map(({ rejected }) => rejected),
    ];
    const T = Math.max(...sides.map(({ length }) => length));
    const shape = [sides.length, T];
    const ids = new Int32Array(sides.length * T).fill(pad);
    const targets = new Int32Array(sides.length * T).fill(IGNORED);
    const answered = new Float32Array(sides.length);
    for (const [row, side] of sides.entries()) {
      const { prompt } = samples[row % samples.length] as PairSample;
      ids.set(side, row * T);
      const first = Math.max(prompt, 1);
      targets.set(side.subarray(first), row * T + first - 1);
      answered[row] = Math.max(0, side.length - first);
    }
    const batch = {
      ids: Tensor.from(ids, { shape, device }),
      targets: Tensor.from(targets, { shape, device }),
      answered: Tensor.from(answered, { device }),
    };
    const known = samples.flatMap(({ reference }) => (reference ? [reference] : []));
    if (known.length === 0) return batch;
    if (known.length < samples.length) {
      const expected = `${REFERENCE.join(' and ')} in all rows, or in none`;
      throw dataError('text.collatePairs', expected, `${known.length} of ${samples.length}`);
    }
    const numbers = [0, 1].flatMap((side) => known.map((one) => one[side as 0 | 1]));
    return { ...batch, reference: Tensor.from(Float32Array.from(numbers), { device }) };
  };
}

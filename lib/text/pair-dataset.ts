// PairDataset: tokenized prompts with a chosen and a rejected answer. Rows have TRL's keys, with
// texts or messages, and may have a `prompt`.

import type { Dataset } from '../data/index.js';
import { DsError } from '../errors.js';
import type { Device } from '../runtime/device.js';
import { formatValue } from '../runtime/format-value.js';
import { argumentError, dataError } from '../runtime/input-errors.js';
import { namesOf, readOptions } from '../runtime/options.js';
import { requireInteger } from '../runtime/require-number.js';
import { requireOneOf } from '../runtime/require-type.js';
import { required } from '../runtime/required.js';
import { Tensor } from '../tensor/index.js';
import {
  type AnswerLengths,
  cutAnswers,
  encodeAnswers,
  padAnswers,
  readLengths,
} from './answer-rows.js';
import { type RowSource, readLocatedRows } from './located-rows.js';
import { IGNORED } from './row-encoder.js';
import type { Row } from './row-reader.js';
import { readTokenizer } from './text-options.js';
import type { Tokenizer } from './tokenizer.js';

/** Ways to handle a pair with a longer side. */
const OVERLONG = ['cut', 'drop'] as const;

/** Options of PairDataset.open(). */
export interface PairOptions extends RowSource, AnswerLengths {
  /** Encodes texts. Its chat template formats messages. */
  tokenizer: Tokenizer | string;
  /** Pairs with a longer side: "cut" the end of the answer, or "drop" the pair. Default: "cut". */
  overlong?: (typeof OVERLONG)[number];
  /**
   * Encode a prompt and an answer as one text, without a border between them, as reward models
   * read them. Default: false.
   */
  whole?: boolean;
}

/** A tokenized pair: the prompt with each answer. */
export interface PairSample {
  /** Tokens of the prompt and the chosen answer. */
  chosen: Int32Array;
  /** Tokens of the prompt and the rejected answer. */
  rejected: Int32Array;
  /** Number of tokens of the prompt; 0 with `whole`. */
  prompt: number;
  /** Log-probabilities of both answers by the reference; null if the row has none. */
  reference: readonly [chosen: number, rejected: number] | null;
  /** Minimum difference of rewards that a reward model learns; null if the row has none. */
  margin: number | null;
}

/**
 * A batch of P pairs: rows 0 to P - 1 are the chosen answers, the other rows the rejected answers.
 */
export interface PairBatch {
  /** Ids of the tokens, [2P, T] i32, padded at the right. */
  ids: Tensor;
  /** The next token inside an answer, else -100, [2P, T] i32. */
  targets: Tensor;
  /** The number of tokens of each answer, [2P] f32. */
  answered: Tensor;
  /** The number of tokens of each row, prompt included, [2P] f32. */
  lengths: Tensor;
  /** Log-probabilities by the reference, if the rows have them, [2P] f32. */
  reference?: Tensor;
  /** Margins of the pairs, if a row has one, [P] f32; 0 for rows without a margin. */
  margins?: Tensor;
}

/** Counts of the rows that open() read. */
export interface PairReport {
  /** Pairs in the dataset. */
  pairs: number;
  /** Dropped rows: the prompt fills `length`, or a side is longer with `overlong: "drop"`. */
  dropped: number;
  /** Pairs with an answer that lost its end. */
  cut: number;
}

/** TRL's keys of log-probabilities by the reference. */
const REFERENCE = ['ref_chosen_logps', 'ref_rejected_logps'] as const;

/** Tokenized pairs of answers in memory. open() creates it. */
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
   * Values are texts or lists of messages. Drops a row if its prompt fills `length`. Throws DS_DATA
   * with file and line for other rows and if no row is left, and DS_ARGUMENT.
   */
  static async open(given: PairOptions): Promise<PairDataset> {
    const op = 'PairDataset.open';
    const options = readOptions(op, given, namesOf.PairOptions);
    const { tokenizer: named, overlong = 'cut', whole = false } = options;
    const tokenizer = readTokenizer(`${op} tokenizer`, named);
    const limits = readLengths(op, options);
    const { length } = limits;
    requireOneOf(`${op} overlong`, overlong, OVERLONG);
    const rules = { tokenizer, isWhole: whole };
    const report: PairReport = { pairs: 0, dropped: 0, cut: 0 };
    const samples: PairSample[] = [];
    for (const located of await readLocatedRows(op, options)) {
      const encoded = encodeAnswers(located, ['chosen', 'rejected'], rules);
      const { prompt, sides, isCut } = cutAnswers(encoded, limits);
      if (prompt >= length || (isCut && overlong === 'drop')) {
        report.dropped += 1;
        continue;
      }
      if (isCut) report.cut += 1;
      const [chosen, rejected] = sides;
      const { row, location } = located;
      samples.push({
        chosen: required(chosen),
        rejected: required(rejected),
        prompt,
        reference: readReference(row, location),
        margin: readMargin(row, location),
      });
    }
    report.pairs = samples.length;
    if (samples.length > 0) return new PairDataset(samples, report);
    const what = overlong === 'drop' ? 'pairs of more than' : 'prompts of at least';
    const got = report.dropped > 0 ? `${report.dropped} ${what} ${length} tokens` : 'none';
    throw dataError(op, 'rows with a chosen and a rejected answer', got);
  }

  /** Returns the same pairs with log-probabilities by the reference, one element for each pair. */
  withReference(numbers: readonly (readonly [chosen: number, rejected: number])[]): PairDataset {
    if (numbers.length !== this.length) {
      const expected = `numbers of ${this.length} pairs`;
      throw argumentError('PairDataset.withReference', expected, String(numbers.length));
    }
    const samples = this.samples.map((sample, i) => ({ ...sample, reference: numbers[i] ?? null }));
    return new PairDataset(samples, this.report);
  }

  /** Returns the pair `index`. Throws DS_INDEX if `index` is out of range. */
  get(index: number): PairSample {
    const sample = this.samples[index];
    if (sample) return sample;
    const expected = `a pair of [0, ${this.length})`;
    throw new DsError({ code: 'DS_INDEX', op: 'PairDataset.get', expected, got: `${index}` });
  }
}

function readReference(row: Row, location: () => string): PairSample['reference'] {
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

function readMargin({ margin }: Row, location: () => string): number | null {
  if (margin === undefined || margin === null) return null;
  if (Number.isFinite(margin)) return margin as number;
  throw dataError(location(), 'a number as the margin', formatValue(margin));
}

/** Returns whether `sample` comes from a PairDataset. */
export function isPairSample(sample: unknown): sample is PairSample {
  const { chosen, rejected, prompt } = (sample ?? {}) as Record<string, unknown>;
  return (
    chosen instanceof Int32Array && rejected instanceof Int32Array && typeof prompt === 'number'
  );
}

/**
 * Returns a `collate` function for DataLoader, which pads pairs with `pad`. The caller owns the
 * tensors. Throws DS_ARGUMENT unless `pad` is an integer from 0, and DS_DATA if only some pairs
 * have log-probabilities of the reference.
 */
export function collatePairs(pad: number): (samples: PairSample[], device: Device) => PairBatch {
  requireInteger('text.collatePairs pad', pad, 0);
  return (samples, device) => {
    const sides = [
      ...samples.map(({ chosen: ids, prompt }) => ({ ids, prompt })),
      ...samples.map(({ rejected: ids, prompt }) => ({ ids, prompt })),
    ];
    const { shape, ids, targets, answered } = padAnswers(sides, pad, IGNORED);
    const batch: PairBatch = {
      ids: Tensor.from(ids, { shape, device }),
      targets: Tensor.from(targets, { shape, device }),
      answered: Tensor.from(answered, { device }),
      lengths: Tensor.from(
        Float32Array.from(sides, (side) => side.ids.length),
        { device },
      ),
    };
    if (samples.some(({ margin }) => typeof margin === 'number')) {
      const margins = Float32Array.from(samples, ({ margin }) => margin ?? 0);
      batch.margins = Tensor.from(margins, { device });
    }
    const references = samples.flatMap(({ reference }) => (reference ? [reference] : []));
    if (references.length === 0) return batch;
    if (references.length < samples.length) {
      const expected = `${REFERENCE.join(' and ')} in all rows, or in none`;
      throw dataError('text.collatePairs', expected, `${references.length} of ${samples.length}`);
    }
    const numbers = [0, 1].flatMap((side) => references.map((item) => item[side as 0 | 1]));
    return { ...batch, reference: Tensor.from(Float32Array.from(numbers), { device }) };
  };
}

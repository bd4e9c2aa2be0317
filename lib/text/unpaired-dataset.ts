// UnpairedDataset: tokenized prompts with an answer that is desirable or not.

import type { Dataset } from '../data/index.js';
import { DsError } from '../errors.js';
import type { Device } from '../runtime/device.js';
import { formatValue } from '../runtime/format-value.js';
import { dataError } from '../runtime/input-errors.js';
import { namesOf, readOptions } from '../runtime/options.js';
import { requireInteger } from '../runtime/require-number.js';
import { required } from '../runtime/required.js';
import { Tensor } from '../tensor/index.js';
import {
  type AnswerLengths,
  cutAnswers,
  type EncodedAnswers,
  encodeAnswers,
  padAnswers,
  readLengths,
} from './answer-rows.js';
import { type RowSource, readLocatedRows } from './located-rows.js';
import { IGNORED } from './row-encoder.js';
import type { LocatedRow } from './row-reader.js';
import { readTokenizer } from './text-options.js';
import type { Tokenizer } from './tokenizer.js';

/** Options of UnpairedDataset.open(). */
export interface UnpairedOptions extends RowSource, AnswerLengths {
  /** Encodes texts. Its chat template formats messages. */
  tokenizer: Tokenizer | string;
}

/** A tokenized prompt with an answer. */
export interface UnpairedSample {
  /** Tokens of the prompt and the answer. */
  ids: Int32Array;
  /** Number of tokens of the prompt. */
  prompt: number;
  /** Whether the answer is desirable. */
  desirable: boolean;
  /** Maximum tokens of a prompt with an answer, including the answer of another row. */
  limit: number;
  /** Row with the answer that does not match the prompt. Default: the previous row. */
  other?: Pick<UnpairedSample, 'ids' | 'prompt'>;
}

/** A batch of B answers. */
export interface UnpairedBatch {
  /** Ids of the tokens, [B, T] i32, padded at the right. */
  ids: Tensor;
  /** The next token inside an answer, else -100, [B, T] i32. */
  targets: Tensor;
  /** The number of tokens of each answer, [B] f32. */
  answered: Tensor;
  /** 1 for desirable answers, 0 for others, [B] f32. */
  desirable: Tensor;
  /** Each prompt with the answer of another row; see withOthers(). */
  mismatched: {
    /** Rows that count: a batch of one row has no other row. Default: all. */
    counted?: number;
    /** Ids of the tokens, [B, T'] i32, padded at the right. */
    ids: Tensor;
    /** The next token inside an answer, else -100, [B, T'] i32. */
    targets: Tensor;
  };
}

/** Counts of the rows that open() read. */
export interface UnpairedReport {
  /** Desirable answers in the dataset. */
  desirable: number;
  /** Other answers in the dataset. */
  undesirable: number;
  /** Dropped rows: the prompt fills `length`. */
  dropped: number;
  /** Answers that lost their end. */
  cut: number;
}

/** Tokenized answers with labels in memory. open() creates it. */
export class UnpairedDataset implements Dataset<UnpairedSample> {
  /** Number of answers. */
  readonly length: number;

  private constructor(
    private readonly samples: readonly UnpairedSample[],
    /** Counts of the rows that open() read. */
    readonly report: UnpairedReport,
  ) {
    this.length = samples.length;
  }

  /**
   * Reads rows of {prompt, completion, label}; the label is true or false. A row of a PairDataset
   * becomes two answers. Values are texts or lists of messages. Drops a row if its prompt fills
   * `length`. Throws DS_DATA with file and line for other rows and if no row is left, and
   * DS_ARGUMENT.
   */
  static async open(given: UnpairedOptions): Promise<UnpairedDataset> {
    const op = 'UnpairedDataset.open';
    const {
      tokenizer: named,
      files,
      rows,
      columns,
      ...lengths
    } = readOptions(op, given, namesOf.UnpairedOptions);
    const tokenizer = readTokenizer(`${op} tokenizer`, named);
    const limits = readLengths(op, lengths);
    const { length } = limits;
    const report: UnpairedReport = { desirable: 0, undesirable: 0, dropped: 0, cut: 0 };
    const samples: UnpairedSample[] = [];
    for (const located of await readLocatedRows(op, { files, rows, columns })) {
      for (const { desirable, ...answer } of readAnswers(located, tokenizer)) {
        const { prompt, sides, isCut } = cutAnswers(answer, limits);
        if (prompt >= length) {
          report.dropped += 1;
          continue;
        }
        if (isCut) report.cut += 1;
        report[desirable ? 'desirable' : 'undesirable'] += 1;
        samples.push({ ids: required(sides[0]), prompt, desirable, limit: length });
      }
    }
    if (samples.length > 0) return new UnpairedDataset(samples, report);
    const got =
      report.dropped > 0 ? `${report.dropped} prompts of at least ${length} tokens` : 'none';
    throw dataError(op, 'rows with a prompt, a completion and a label', got);
  }

  /** Returns the answer `index`. Throws DS_INDEX if `index` is out of range. */
  get(index: number): UnpairedSample {
    const sample = this.samples[index];
    if (sample) return sample;
    const expected = `an answer of [0, ${this.length})`;
    throw new DsError({ code: 'DS_INDEX', op: 'UnpairedDataset.get', expected, got: `${index}` });
  }
}

type LabelledAnswer = EncodedAnswers & { readonly desirable: boolean };

/** Labels in CSV, as pandas and spreadsheets write them. */
const FLAGS: Readonly<Record<string, boolean>> = {
  true: true,
  false: false,
  '1': true,
  '0': false,
};

function readAnswers(located: LocatedRow, tokenizer: Tokenizer): LabelledAnswer[] {
  const { row, location, isText } = located;
  const rules = { tokenizer, isWhole: false };
  const isPair = row.chosen !== undefined && row.rejected !== undefined;
  if (isPair) {
    const { prompt, sides } = encodeAnswers(located, ['chosen', 'rejected'], rules);
    return sides.map((ids, side) => ({ prompt, sides: [ids], desirable: side === 0 }));
  }
  const answer = encodeAnswers(located, ['completion'], rules);
  const label = isText ? (FLAGS[String(row.label).trim().toLowerCase()] ?? row.label) : row.label;
  if (typeof label === 'boolean') return [{ ...answer, desirable: label }];
  const hint = 'Write true for good answers and false for bad ones.';
  throw dataError(location(), 'true or false as the label', formatValue(label), hint);
}

/** Returns whether `sample` comes from an UnpairedDataset. */
export function isUnpairedSample(sample: unknown): sample is UnpairedSample {
  const { ids, prompt, desirable } = (sample ?? {}) as Record<string, unknown>;
  return ids instanceof Int32Array && typeof prompt === 'number' && typeof desirable === 'boolean';
}

/**
 * @internal Returns `dataset` with a mismatched row for each row: the previous one among `size`
 * adjacent rows, or the last of them for the first. So the rows of an update have the same
 * mismatches on any number of ranks and micro-batches.
 */
export function withOthers(
  dataset: Dataset<UnpairedSample>,
  size: number,
): Dataset<UnpairedSample> {
  const { length } = dataset;
  const otherOf = (index: number): number => {
    const first = index - (index % size);
    const rows = Math.min(size, length - first);
    if (rows === 1) return (index + length - 1) % length;
    return first + ((index - first + rows - 1) % rows);
  };
  const joinSample = ([ownSample, other]: readonly [
    UnpairedSample,
    UnpairedSample,
  ]): UnpairedSample => (ownSample === other ? ownSample : { ...ownSample, other });
  return {
    length,
    get: (index) => {
      const both = [dataset.get(index), dataset.get(otherOf(index))] as const;
      const isLate = both.some((item) => item instanceof Promise);
      return isLate ? Promise.all(both).then(joinSample) : joinSample(both as never);
    },
  };
}

/**
 * Returns a `collate` function for DataLoader, which pads answers with `pad`. The caller owns the
 * tensors. Throws DS_ARGUMENT unless `pad` is an integer from 0.
 */
export function collateUnpaired(
  pad: number,
): (samples: UnpairedSample[], device: Device) => UnpairedBatch {
  requireInteger('text.collateUnpaired pad', pad, 0);
  return (samples, device) => {
    const answers = padAnswers(samples, pad, IGNORED);
    const mismatched = samples.map(({ ids, prompt, limit }, i) => {
      const other = samples[i]?.other ?? required(samples.at(i - 1));
      const joined = [...ids.subarray(0, prompt), ...other.ids.subarray(other.prompt)];
      return { ids: Int32Array.from(joined.slice(0, limit)), prompt };
    });
    const others = padAnswers(mismatched, pad, IGNORED);
    const isAlone = samples.length === 1 && !samples[0]?.other;
    const tensor = (values: Int32Array, shape: readonly number[]): Tensor =>
      Tensor.from(values, { shape, device });
    return {
      ids: tensor(answers.ids, answers.shape),
      targets: tensor(answers.targets, answers.shape),
      answered: Tensor.from(answers.answered, { device }),
      desirable: Tensor.from(
        Float32Array.from(samples, ({ desirable }) => (desirable ? 1 : 0)),
        { device },
      ),
      mismatched: {
        counted: isAlone ? 0 : samples.length,
        ids: tensor(others.ids, others.shape),
        targets: tensor(others.targets, others.shape),
      },
    };
  };
}

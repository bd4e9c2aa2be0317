// LabelledDataset: tokenized rows with labels in memory, and their batches.

import type { Dataset } from '../data/index.js';
import { DsError } from '../errors.js';
import type { Device } from '../runtime/device.js';
import { formatValue } from '../runtime/format-value.js';
import { argumentError, dataError, valueError } from '../runtime/input-errors.js';
import { namesOf, readOptions } from '../runtime/options.js';
import { requireFinite, requireInteger } from '../runtime/require-number.js';
import { requireOneOf, requireType } from '../runtime/require-type.js';
import { defined, leading } from '../runtime/required.js';
import { Tensor } from '../tensor/index.js';
import {
  encodeTarget,
  findLabels,
  LABEL_KINDS,
  type LabelKind,
  type LabelSet,
  labelIndex,
  plainNumber,
  type RowKeys,
  readLabels,
  readTexts,
} from './labelled-rows.js';
import { type RowSource, readLocatedRows } from './located-rows.js';
import { readAnswer } from './question-rows.js';
import type { LocatedRow } from './row-reader.js';
import { readTokenizer } from './text-options.js';
import type { Tokenizer } from './tokenizer.js';

/** Tasks that train on rows with labels. */
export type LabelledTask =
  | 'sequence-classification'
  | 'token-classification'
  | 'question-answering'
  | 'masked-lm';

/** Options of LabelledDataset.open(). */
export interface LabelledOptions extends RowKeys, RowSource {
  /** Encodes the texts. */
  tokenizer: Tokenizer | string;
  /** The task of the rows. Default: "sequence-classification". */
  task?: LabelledTask;
  /**
   * Names of the labels, in the order of their indices. Default: the labels of the rows, sorted.
   */
  labels?: readonly string[];
  /** The kind of the labels. Default: the rows determine it. */
  kind?: LabelKind;
  /** Maximum tokens of a row. Default: 512. */
  maxLength?: number;
  /** For "masked-lm": the share of tokens that the model predicts. Default: 0.15. */
  maskShare?: number;
  /** For "masked-lm": selects the masked tokens. Default: 42. */
  seed?: number;
}

/** A row as tokens. */
export interface LabelledSample {
  /** Ids of the tokens. */
  ids: Int32Array;
  /** The index of each token's text, 0 or 1. */
  types: Int32Array;
  /**
   * The target by task. Classification: the index of a label, 0 or 1 for each of several labels, or
   * values. Token classification: an index per token. Question answering: the first and last token
   * of an answer.
   */
  target: Int32Array | Float32Array;
  /** The task that the target belongs to. */
  task: LabelledTask;
}

/** Samples as tensors, padded to the longest row. */
export interface LabelledBatch {
  /** Ids of the tokens, [B, T] i32. */
  ids: Tensor;
  /** 1 for tokens, 0 for padding, [B, T] i32. */
  mask: Tensor;
  /** The index of each token's text, 0 or 1, [B, T] i32. */
  types: Tensor;
  /** Targets, as TaskLabels describes them; absent for question answering. */
  labels?: Tensor;
  /** First tokens of answers, [B] i32. */
  starts?: Tensor;
  /** Last tokens of answers, [B] i32. */
  ends?: Tensor;
}

/** Target that the loss ignores. */
const IGNORED = -100;

/** Tokenized rows with labels, in memory. open() creates it. */
export class LabelledDataset implements Dataset<LabelledSample> {
  /** Number of samples. */
  readonly length: number;

  private constructor(
    private readonly samples: readonly LabelledSample[],
    /** Names of the labels, in the order of their indices; null for tasks without labels. */
    readonly labels: readonly string[] | null,
    /** The kind of the labels. */
    readonly kind: LabelKind,
  ) {
    this.length = samples.length;
  }

  /**
   * Reads rows of {text, label}, of two texts, of {tokens, tags}, or of {question, context,
   * answers}. Throws DS_DATA with file and line for an invalid row, and DS_ARGUMENT.
   */
  static async open(given: LabelledOptions): Promise<LabelledDataset> {
    const op = 'LabelledDataset.open';
    const options = readOptions(op, given, namesOf.LabelledOptions);
    const { task = 'sequence-classification', maxLength = 512 } = options;
    requireInteger(`${op} maxLength`, maxLength, 3);
    requireRowOptions(op, options);
    const tokenizer = readTokenizer(`${op} tokenizer`, options.tokenizer);
    const rows = await readLocatedRows(op, options);
    if (rows.length === 0) throw dataError(op, 'rows', noRows(options));
    const how = { ...options, tokenizer, maxLength };
    switch (task) {
      case 'sequence-classification':
        return LabelledDataset.fromTexts(rows, how);
      case 'token-classification':
        return LabelledDataset.fromTokens(rows, how);
      case 'question-answering': {
        const samples = rows.map((row) => encodeAnswerSample(row, how));
        return new LabelledDataset(samples, null, 'class');
      }
      case 'masked-lm': {
        const samples = rows.map((row, i) => encodeMaskedSample(row, how, i));
        return new LabelledDataset(samples, null, 'class');
      }
      default:
        throw argumentError(`${op} task`, 'a task with labels', formatValue(task));
    }
  }

  private static fromTexts(rows: readonly LocatedRow[], options: OpenedOptions): LabelledDataset {
    const written = readLabels(rows, options);
    const labels = findLabels(written, { names: options.labels, kind: options.kind });
    const samples = rows.map((row, i): LabelledSample => {
      const { label, location } = defined(written[i]);
      const target = encodeTarget(label, labels, location);
      return { ...encodeRow(row, options), target, task: 'sequence-classification' };
    });
    return new LabelledDataset(samples, labels.names, labels.kind);
  }

  private static fromTokens(rows: readonly LocatedRow[], options: OpenedOptions): LabelledDataset {
    const tagged = rows.map((row) => readTaggedRow(row, options));
    const flat = tagged.flatMap(({ tags, location }) => tags.map((label) => ({ label, location })));
    const labels = findLabels(flat, { names: options.labels, kind: 'class' });
    const samples = tagged.map((row) => encodeTokenSample(row, labels, options));
    return new LabelledDataset(samples, labels.names, 'class');
  }

  /** Returns the sample `index`. Throws DS_INDEX if `index` is out of range. */
  get(index: number): LabelledSample {
    const sample = this.samples[index];
    if (sample) return sample;
    const expected = `a sample of [0, ${this.length})`;
    throw new DsError({ code: 'DS_INDEX', op: 'LabelledDataset.get', expected, got: `${index}` });
  }
}

const isText = (value: unknown): value is string => typeof value === 'string';

/** Throws DS_ARGUMENT for options of another type. */
function requireRowOptions(op: string, options: LabelledOptions): void {
  const { textKey, labelKey, labels, kind, maskShare, seed } = options;
  const isPair = Array.isArray(textKey) && textKey.length === 2 && textKey.every(isText);
  if (textKey !== undefined && !isText(textKey) && !isPair) {
    throw valueError(`${op} textKey`, 'a key, or a list of two keys', textKey);
  }
  if (labelKey !== undefined) requireType(`${op} labelKey`, labelKey, 'string');
  if (kind !== undefined) requireOneOf(`${op} kind`, kind, LABEL_KINDS);
  if (maskShare !== undefined) requireFinite(`${op} maskShare`, maskShare, 0, 1);
  if (seed !== undefined) requireInteger(`${op} seed`, seed, 0);
  if (labels === undefined) return;
  const isNames = Array.isArray(labels) && labels.length > 0 && labels.every(isText);
  if (isNames && new Set(labels).size === labels.length) return;
  throw valueError(`${op} labels`, 'a list of names, each of them once', labels);
}

/** Describes data without rows: the files, if they are the source. */
const noRows = ({ files }: LabelledOptions): string =>
  files === undefined ? 'none' : `none in ${[files].flat().join(', ')}`;

type OpenedOptions = LabelledOptions & { tokenizer: Tokenizer; maxLength: number };

function encodeRow(row: LocatedRow, { tokenizer, maxLength, textKey }: OpenedOptions) {
  const [first, second] = readTexts(row, textKey === undefined ? {} : { textKey });
  if (second !== undefined) return tokenizer.encodePair(first, second, { maxLength });
  const ids = tokenizer.encode(first, { maxLength });
  return { ids, types: new Int32Array(ids.length) };
}

/** Words of a row, with one tag per word. */
interface TaggedRow {
  words: readonly string[];
  tags: readonly unknown[];
  location(): string;
}

function readTaggedRow({ row, location }: LocatedRow, { textKey, labelKey }: RowKeys): TaggedRow {
  const { tokens, words = tokens } = row;
  const texts = typeof textKey === 'string' ? row[textKey] : words;
  const { ner_tags: entities, pos_tags: parts, tags = entities ?? parts, labels = tags } = row;
  const tagList = plainNumber(labelKey === undefined ? labels : row[labelKey]);
  const isWords = Array.isArray(texts) && texts.every((word) => typeof word === 'string');
  if (isWords && Array.isArray(tagList) && tagList.length === texts.length) {
    return { words: texts, tags: tagList, location };
  }
  const expected = 'lists of one length, "tokens" and "tags"';
  const got = `a row with ${Object.keys(row).slice(0, 8).join(', ')}`;
  throw dataError(
    location(),
    expected,
    got,
    'Name the keys: textKey, labelKey (--text_column_names, --label_column_name).',
  );
}

/**
 * Encodes a row of words. The first token of a word gets the word's tag; the loss ignores the other
 * tokens.
 */
function encodeTokenSample(
  { words, tags, location }: TaggedRow,
  found: LabelSet,
  { tokenizer, maxLength }: OpenedOptions,
): LabelledSample {
  const around = [...tokenizer.encode('')];
  const [prefix, suffix] = [
    around.slice(0, Math.ceil(around.length / 2)),
    around.slice(Math.ceil(around.length / 2)),
  ];
  const ids: number[] = [...prefix];
  const target: number[] = prefix.map(() => IGNORED);
  words.forEach((word, w) => {
    const text = w === 0 ? word : ` ${word}`;
    const number = labelIndex(tags[w], found, location);
    for (const [i, id] of tokenizer.encode(text, { addSpecialTokens: false }).entries()) {
      ids.push(id);
      target.push(i === 0 ? number : IGNORED);
    }
  });
  const max = maxLength - suffix.length;
  const cutIds = [...ids.slice(0, max), ...suffix];
  const targets = [...target.slice(0, max), ...suffix.map(() => IGNORED)];
  return {
    ids: Int32Array.from(cutIds),
    types: new Int32Array(cutIds.length),
    target: Int32Array.from(targets),
    task: 'token-classification',
  };
}

/**
 * Encodes a row with its first answer. If the kept tokens contain no answer, both ends are outside
 * the text.
 */
function encodeAnswerSample(
  row: LocatedRow,
  { tokenizer, maxLength }: OpenedOptions,
): LabelledSample {
  const { question, context } = row.row;
  if (typeof question !== 'string' || typeof context !== 'string') {
    throw dataError(row.location(), 'the strings "question" and "context"', formatValue(row.row));
  }
  const { ids, types } = tokenizer.encodePair(question, context, { maxLength });
  const outside = ids.length;
  let target = Int32Array.of(outside, outside);
  const answer = readAnswer(row, context);
  if (answer) {
    const { text, start } = answer;
    const count = (part: string): number =>
      tokenizer.encode(part.trimEnd(), { addSpecialTokens: false }).length;
    const contextIds = tokenizer.encode(context, { addSpecialTokens: false });
    const begin = findContext(ids, contextIds);
    const [from, to] = [
      count(context.slice(0, start)),
      count(context.slice(0, start + text.length)) - 1,
    ];
    if (begin !== null && to >= from && begin + to < ids.length - 1) {
      target = Int32Array.of(begin + from, begin + to);
    }
  }
  return { ids, types, target, task: 'question-answering' };
}

/** Returns the position of the context's first token; null if it was cut off. */
function findContext(ids: Int32Array, context: Int32Array): number | null {
  const probeLength = Math.min(context.length, 8);
  for (let at = ids.length - 1 - probeLength; at >= 1; --at) {
    let i = 0;
    while (i < probeLength && ids[at + i] === context[i]) i++;
    if (i === probeLength) return at;
  }
  return null;
}

/**
 * Selects tokens to predict: 80 % become the mask token, 10 % a random token, and 10 % stay.
 * Source: Devlin et al. 2018.
 */
function encodeMaskedSample(
  row: LocatedRow,
  options: OpenedOptions,
  index: number,
): LabelledSample {
  const { tokenizer, maskShare = 0.15, seed = 42 } = options;
  const { ids, types } = encodeRow(row, options);
  const mask = tokenizer.maskId;
  if (mask === null) {
    throw argumentError('LabelledDataset.open tokenizer', 'a tokenizer with a mask token', 'none');
  }
  const draw = createRandom(seed + 7919 * index);
  const target = new Int32Array(ids.length).fill(IGNORED);
  const changed = ids.map((id, t) => {
    if (tokenizer.specialIds.has(id) || draw() >= maskShare) return id;
    target[t] = id;
    const kind = draw();
    if (kind < 0.8) return mask;
    return kind < 0.9 ? Math.floor(draw() * tokenizer.vocabSize) : id;
  });
  return { ids: changed, types, target, task: 'masked-lm' };
}

/** Returns a generator of random numbers in [0, 1). Source: mulberry32. */
function createRandom(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), state | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** Returns whether `sample` comes from a LabelledDataset. */
export function isLabelledSample(sample: unknown): sample is LabelledSample {
  const { ids, types, target, task } = (sample ?? {}) as Record<string, unknown>;
  return (
    [ids, types].every((part) => part instanceof Int32Array) &&
    target !== undefined &&
    typeof task === 'string'
  );
}

/**
 * Returns a `collate` function for DataLoader. It pads samples with `pad` to the longest. The
 * caller owns the tensors. Throws DS_ARGUMENT unless `pad` is an integer from 0.
 */
export function collateLabelled(
  pad: number,
): (samples: LabelledSample[], device: Device) => LabelledBatch {
  requireInteger('text.collateLabelled pad', pad, 0);
  return (samples, device) => {
    const T = Math.max(...samples.map(({ ids }) => ids.length));
    const shape = [samples.length, T];
    const fillTensor = (value: number, of: (sample: LabelledSample) => Int32Array): Tensor => {
      const values = new Int32Array(samples.length * T).fill(value);
      samples.forEach((sample, r) => {
        values.set(of(sample), r * T);
      });
      return Tensor.from(values, { shape, device });
    };
    const inputs = {
      ids: fillTensor(pad, ({ ids }) => ids),
      mask: fillTensor(0, ({ ids }) => new Int32Array(ids.length).fill(1)),
      types: fillTensor(0, ({ types }) => types),
    };
    const [{ task, target: first }] = leading(samples, 1);
    if (task === 'question-answering') {
      const end = (side: number): Tensor => {
        // An answer outside of its text is outside of the batch too.
        const positions = samples.map(({ ids, target }) =>
          defined(target[side]) >= ids.length ? T : defined(target[side]),
        );
        return Tensor.from(Int32Array.from(positions), { device });
      };
      return { ...inputs, starts: end(0), ends: end(1) };
    }
    if (task !== 'sequence-classification') {
      return { ...inputs, labels: fillTensor(IGNORED, ({ target }) => target as Int32Array) };
    }
    if (first instanceof Int32Array) {
      const numbers = samples.map(({ target }) => defined(target[0]));
      return { ...inputs, labels: Tensor.from(Int32Array.from(numbers), { device }) };
    }
    const values = Float32Array.from(samples.flatMap(({ target }) => [...target]));
    return {
      ...inputs,
      labels: Tensor.from(values, { shape: [samples.length, first.length], device }),
    };
  };
}

// Builds samples (rows of a batch): tokens, labels, positions and documents.

import { DsError } from '../errors.js';
import type { Device } from '../runtime/device.js';
import { requireInteger } from '../runtime/require-number.js';
import { leading, required } from '../runtime/required.js';
import { describe } from '../runtime/view.js';
import { concat, scope, Tensor } from '../tensor/index.js';
import { requireTensor, shapeError } from '../tensor/ops/shapes.js';
import type { Piece } from './packing.js';
import { IGNORED } from './row-encoder.js';

/** A row of a batch; each list has one element per token. */
export interface TextSample {
  /** Tokens. */
  ids: Int32Array;
  /**
   * The token itself where it is learned, else -100; a model predicts the label at i from the
   * tokens before i.
   */
  labels: Int32Array;
  /** Position of the token in its document, from 0. */
  positions: Int32Array;
  /** Index of the token's document in the row, from 0; -1 for padding. */
  documents: Int32Array;
}

/** The document of padding. */
const PADDING = -1;

/**
 * Samples as tensors [B, T] i32. The forward of a language model takes { documents, positions }.
 */
export type TextBatch = { [Key in keyof TextSample]: Tensor };

/** Tokens and labels of consecutive documents. */
export interface TokenRun {
  ids: Int32Array;
  labels: Int32Array;
}

/** Concatenates pieces and pads them with `pad` to `length` tokens. */
export function buildSample(
  run: TokenRun,
  pieces: readonly Piece[],
  length: number,
  pad: number,
): TextSample {
  const sample: TextSample = {
    ids: createList(length).fill(pad),
    labels: createList(length).fill(IGNORED),
    positions: createList(length),
    documents: createList(length).fill(PADDING),
  };
  let at = 0;
  pieces.forEach((piece, number) => {
    const { start, length: count } = piece;
    sample.ids.set(run.ids.subarray(start, start + count), at);
    sample.labels.set(run.labels.subarray(start, start + count), at);
    // The token before a piece is not in the sample.
    sample.labels[at] = IGNORED;
    sample.documents.fill(number, at, at + count);
    for (let i = 0; i < count; ++i) sample.positions[at + i] = i;
    at += count;
  });
  for (let i = at; i < length; ++i) sample.positions[i] = i - at;
  return sample;
}

/** Throws DS_OUT_OF_MEMORY. */
function createList(length: number): Int32Array {
  try {
    return new Int32Array(length);
  } catch {
    throw new DsError({
      code: 'DS_OUT_OF_MEMORY',
      op: 'a sample of text',
      expected: `memory for four lists of ${length} tokens`,
      got: 'less',
      hint: 'Lower `length`.',
    });
  }
}

/**
 * Collates samples of any lengths to a batch, padded to the longest length, which is rounded up to
 * a multiple; for DataLoader's `collate`. The caller owns the tensors. Throws DS_ARGUMENT unless
 * `pad` is an integer from 0 and `multiple` an integer from 1.
 */
export function collateSamples(
  pad: number,
  multiple = 1,
): (samples: TextSample[], device: Device) => TextBatch {
  requireInteger('text.collateSamples pad', pad, 0);
  requireInteger('text.collateSamples multiple', multiple, 1);
  return (samples, device) => {
    const longest = Math.max(...samples.map(({ ids }) => ids.length));
    const length = Math.ceil(longest / multiple) * multiple;
    const shape = [samples.length, length];
    const tensor = (fill: (row: Int32Array, sample: TextSample) => void): Tensor => {
      const values = new Int32Array(samples.length * length);
      samples.forEach((sample, r) => {
        fill(values.subarray(r * length, (r + 1) * length), sample);
      });
      return Tensor.from(values, { shape, device });
    };
    return {
      ids: tensor((row, { ids }) => row.fill(pad).set(ids)),
      labels: tensor((row, { labels }) => row.fill(IGNORED).set(labels)),
      positions: tensor((row, { positions }) => {
        for (let i = positions.length; i < length; ++i) row[i] = i - positions.length;
        row.set(positions);
      }),
      documents: tensor((row, { documents }) => row.fill(PADDING).set(documents)),
    };
  };
}

/**
 * Returns the token that each position predicts: labels [B, T] shifted left by one, -100 at the
 * end. Needed by models that take targets; models that take labels shift them. The caller owns the
 * result.
 */
export function targetsOf(labels: Tensor): Tensor {
  requireTensor('targetsOf', labels);
  if (labels.ndim !== 2) throw shapeError('targetsOf', 'labels [B, T]', describe(labels));
  const [rows, length] = leading(labels.shape, 2);
  return scope(() => {
    const { dtype, device } = labels;
    const end = Tensor.from(new Int32Array(rows).fill(IGNORED), {
      shape: [rows, 1],
      dtype,
      device,
    });
    return concat([labels.narrow(1, 1, length - 1), end], 1);
  });
}

/**
 * Returns the number of tokens of each document, row by row, padding included. `length` is the
 * length of a row. Variable-length attention takes these lengths.
 */
export function documentLengths(documents: ArrayLike<number>, length: number): Int32Array {
  requireInteger('text.documentLengths length', length, 1);
  const lengths: number[] = [];
  for (let i = 0; i < documents.length; ++i) {
    const isNew = i % length === 0 || documents[i] !== documents[i - 1];
    if (isNew) lengths.push(0);
    lengths[lengths.length - 1] = required(lengths.at(-1)) + 1;
  }
  return Int32Array.from(lengths);
}

/**
 * Returns the start of each document in the tokens of all rows, then the number of tokens
 * (cu_seqlens).
 */
export function cumulativeLengths(documents: ArrayLike<number>, length: number): Int32Array {
  const lengths = documentLengths(documents, length);
  const starts = new Int32Array(lengths.length + 1);
  lengths.forEach((count, i) => {
    starts[i + 1] = required(starts[i]) + count;
  });
  return starts;
}

// Pads rows of different lengths to one tensor, with mask and positions.
import type { Device } from '../runtime/device.js';
import { formatValue } from '../runtime/format-value.js';
import { argumentError } from '../runtime/input-errors.js';
import { requireInteger } from '../runtime/require-number.js';
import { Tensor } from '../tensor/index.js';
import type { Side } from './tokenizer-folder.js';

/** Options of padding. */
export interface PaddingOptions {
  /** Length of every row; "longest" is the longest row. Default: "longest". */
  padTo?: number | 'longest';
  /** Rounds the length up to a multiple of this. Default: 1. */
  padToMultipleOf?: number;
  /**
   * Side of the padding: "left" to generate, "right" to train. Default: the tokenizer's
   * `paddingSide`.
   */
  paddingSide?: Side;
}

/** Tensors [B, T] i32. */
export interface PaddedBatch {
  /** Tokens and pad tokens. */
  ids: Tensor;
  /** 1 for tokens, 0 for padding. */
  mask: Tensor;
  /** Position of each token in its row, from 0; 0 for padding. */
  positions: Tensor;
  /** 0 for tokens, -1 for padding: the input `documents` of attention. */
  documents: Tensor;
}

/**
 * Pads rows to tensors [B, T]. Throws DS_ARGUMENT if a row is longer than `padTo`, or if rows
 * differ in length and `pad` is null.
 */
export function padRows(
  op: string,
  rows: readonly Int32Array[],
  pad: number | null,
  options: PaddingOptions & { device?: Device | string },
): PaddedBatch {
  const { paddingSide: side = 'right', device = 'cpu' } = options;
  if (side !== 'left' && side !== 'right') {
    throw argumentError(`${op} paddingSide`, '"left" or "right"', formatValue(side), '');
  }
  const length = rowLength(op, rows, options);
  if (pad === null && rows.some((row) => row.length < length)) {
    const hint = 'Give texts of one length, or set "pad_token" in tokenizer_config.json.';
    throw argumentError(op, 'a tokenizer with a padding or end token', 'neither', hint);
  }
  const shape = [rows.length, length];
  const ids = new Int32Array(rows.length * length).fill(pad ?? 0);
  const mask = new Int32Array(ids.length);
  const positions = new Int32Array(ids.length);
  rows.forEach((row, r) => {
    const start = r * length + (side === 'left' ? length - row.length : 0);
    ids.set(row, start);
    mask.fill(1, start, start + row.length);
    for (let i = 0; i < row.length; ++i) positions[start + i] = i;
  });
  const tensor = (values: Int32Array): Tensor => Tensor.from(values, { shape, device });
  return {
    ids: tensor(ids),
    mask: tensor(mask),
    positions: tensor(positions),
    documents: tensor(mask.map((seen) => seen - 1)),
  };
}

function rowLength(op: string, rows: readonly Int32Array[], options: PaddingOptions): number {
  const { padTo = 'longest', padToMultipleOf = 1 } = options;
  const multiple = requireInteger(`${op} padToMultipleOf`, padToMultipleOf, 1);
  const longest = rows.reduce((max, row) => Math.max(max, row.length), 0);
  if (padTo === 'longest') return Math.ceil(longest / multiple) * multiple;
  const length = Math.ceil(requireInteger(`${op} padTo`, padTo, 0) / multiple) * multiple;
  if (longest <= length) return length;
  const hint = 'Give maxLength as well, to cut longer texts.';
  throw argumentError(`${op} padTo`, `rows of at most ${length} tokens`, `one of ${longest}`, hint);
}

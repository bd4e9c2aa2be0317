// Slices: other programs store some tensors in slices or under other names, for example one matrix
// per expert. This library stacks such matrices in one tensor.

import type { JsonValue } from '../../types/json.js';
import { type Box, positionIn, wholeBox } from '../runtime/box.js';
import { leading } from '../runtime/required.js';
import { held, type Tensor } from '../tensor/index.js';
import type { TensorSource } from './safetensors-writer.js';

/**
 * The names in files of each tensor, by the tensor's name in this library, as patterns.
 *
 * - A pattern without `*` names the whole tensor.
 * - With `*`, a tensor [n, k r, c] has k patterns. Pattern p with `*` = i names the matrix [r, c]
 *   that is the p-th of the k matrices of index i.
 */
export type SliceNames = Readonly<Record<string, readonly string[]>>;

/** A slice of a tensor: its name in the files, and its elements. */
export interface FileSlice {
  /** Name of the tensor in the files. */
  readonly name: string;
  /** The elements of the tensor in this slice. */
  readonly box: Box;
  /** Shape of the tensor in the files. */
  readonly shape: readonly number[];
}

/** Returns the slices of a tensor of `shape` in the order of their elements. */
export function fileSlicesOf(patterns: readonly string[], shape: readonly number[]): FileSlice[] {
  const [first] = patterns;
  if (first === undefined) return [];
  if (!first.includes('*')) return [{ name: first, box: wholeBox(shape), shape }];
  const [count, height, width] = leading(shape, 3);
  const rows = height / patterns.length;
  return Array.from({ length: count }, (_, index) =>
    patterns.map((pattern, part) => ({
      name: pattern.replace('*', String(index)),
      box: { offset: [index, part * rows, 0], shape: [1, rows, width] },
      shape: [rows, width],
    })),
  ).flat();
}

/**
 * Reads the patterns that Module.describe() returned from a checkpoint; null if they are damaged.
 */
export function readSliceNames(value: JsonValue | undefined): SliceNames | null {
  if (value === undefined || value === null) return {};
  if (typeof value !== 'object' || Array.isArray(value)) return null;
  const isPatterns = (item: JsonValue | undefined): boolean =>
    Array.isArray(item) && item.length > 0 && item.every((name) => typeof name === 'string');
  return Object.values(value).every(isPatterns) ? (value as unknown as SliceNames) : null;
}

/**
 * Returns the slices of `source`. Their values are computed when they are requested. The caller
 * must request them in order: the first request creates the whole tensor, the last one releases it.
 */
export function inFileSlices(
  source: TensorSource,
  patterns: readonly string[] | undefined,
): TensorSource[] {
  const { dtype, shape, values } = source;
  if (!patterns || typeof values !== 'function') return [source];
  const slices = fileSlicesOf(patterns, shape);
  const box = wholeBox(shape);
  let created: Tensor | null = null;
  return slices.map((slice, i) => ({
    name: slice.name,
    dtype,
    shape: slice.shape,
    values: async () => {
      created ??= await values();
      const all = created;
      const offset = all.offset + positionIn(box, slice.box.offset);
      const part = held(() => all.alias(slice.shape, undefined, offset));
      if (i === slices.length - 1) {
        created = null;
        all.release();
      }
      return part;
    },
  }));
}

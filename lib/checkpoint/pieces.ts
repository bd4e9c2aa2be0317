// Pieces: tensors that files of other programs store in parts or under other names, such as
// matrices of experts.
import type { JsonValue } from '../../types/json.js';
import { type Box, positionIn, wholeBox } from '../runtime/box.js';
import { held, type Tensor } from '../tensor/index.js';
import type { TensorSource } from './safetensors-writer.js';

/**
 * Patterns of the names in files, by this library's name. In a pattern, `*` is the first index of a
 * tensor [n, k r, c]; its k patterns name k matrices [r, c] of each index, in order. A pattern
 * without `*` names the whole tensor.
 */
export type Pieces = Readonly<Record<string, readonly string[]>>;

/** A part of a tensor under its name in the files. */
export interface Piece {
  /** In the files. */
  readonly name: string;
  /** Its part of the tensor. */
  readonly box: Box;
  /** In the files. */
  readonly shape: readonly number[];
}

/** Returns the pieces of a tensor of `shape`, in order. */
export function piecesOf(patterns: readonly string[], shape: readonly number[]): Piece[] {
  const [first] = patterns;
  if (first === undefined) return [];
  if (!first.includes('*')) return [{ name: first, box: wholeBox(shape), shape }];
  const [count, height, width] = shape as [number, number, number];
  const rows = height / patterns.length;
  return Array.from({ length: count }, (_, index) =>
    patterns.map((pattern, part) => ({
      name: pattern.replace('*', String(index)),
      box: { offset: [index, part * rows, 0], shape: [1, rows, width] },
      shape: [rows, width],
    })),
  ).flat();
}

/** Reads the pieces of Module.describe(); null if they are damaged. */
export function readPieces(value: JsonValue | undefined): Pieces | null {
  if (value === undefined || value === null) return {};
  if (typeof value !== 'object' || Array.isArray(value)) return null;
  const isPatterns = (one: JsonValue | undefined): boolean =>
    Array.isArray(one) && one.length > 0 && one.every((name) => typeof name === 'string');
  return Object.values(value).every(isPatterns) ? (value as unknown as Pieces) : null;
}

/**
 * Returns `source` in pieces, with lazy values. Pieces must be requested in order: the first one
 * creates the whole tensor, the last one releases it.
 */
export function inPieces(
  source: TensorSource,
  patterns: readonly string[] | undefined,
): TensorSource[] {
  const { dtype, shape, values } = source;
  if (!patterns || typeof values !== 'function') return [source];
  const pieces = piecesOf(patterns, shape);
  const box = wholeBox(shape);
  let made: Tensor | null = null;
  return pieces.map((piece, i) => ({
    ...{ name: piece.name, dtype, shape: piece.shape },
    values: async () => {
      made ??= await values();
      const all = made;
      const offset = all.offset + positionIn(box, piece.box.offset);
      const part = held(() => all.alias(piece.shape, undefined, offset));
      if (i === pieces.length - 1) {
        made = null;
        all.release();
      }
      return part;
    },
  }));
}

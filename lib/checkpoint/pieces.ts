// Tensors that other programs' files have in pieces, or under another name: the matrices of
// experts, which a model has one above the other.
import type { JsonValue } from '../../types/json.js';
import { type Box, positionIn, wholeBox } from '../runtime/box.js';
import { held, type Tensor } from '../tensor/index.js';
import type { TensorSource } from './safetensors-writer.js';

/**
 * Patterns of the files' names, by our name. In a pattern, `*` is the first index of a tensor [n, k
 * r, c]; its k patterns name k matrices [r, c] of each index, in their order. A pattern without `*`
 * is the files' name of the whole.
 */
export type Pieces = Readonly<Record<string, readonly string[]>>;

/** What the files have under a name of a tensor of ours. */
export interface Piece {
  /** In the files. */
  readonly name: string;
  /** Which part of ours it is. */
  readonly box: Box;
  /** In the files. */
  readonly shape: readonly number[];
}

/** The pieces of a tensor of `shape`, in its order. */
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

/** What Module.describe() says of pieces; null where that is damaged. */
export function readPieces(value: JsonValue | undefined): Pieces | null {
  if (value === undefined || value === null) return {};
  if (typeof value !== 'object' || Array.isArray(value)) return null;
  const isPatterns = (one: JsonValue | undefined): boolean =>
    Array.isArray(one) && one.length > 0 && one.every((name) => typeof name === 'string');
  return Object.values(value).every(isPatterns) ? (value as unknown as Pieces) : null;
}

/**
 * `source`, whose values are made when asked for, as the files have it. Pieces are to be asked for
 * in their order: what they are of is made for the first, and let go with the last.
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

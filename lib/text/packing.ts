// Packs documents into samples: cuts them to a maximum length, and fills samples best fit first.
import { required } from '../runtime/required.js';

/** Tokens [start, start + length) of a run of documents. */
export interface Piece {
  start: number;
  length: number;
}

/** Ways to handle documents longer than a sample. */
export const OVERLONG = ['cut', 'split', 'drop'] as const;

/**
 * How a document longer than a sample is handled: cut to the first sample, split into several
 * pieces, or dropped.
 */
export type Overlong = (typeof OVERLONG)[number];

/** Returns the pieces of consecutive documents, and the counts of cut rows and tokens. */
export function cutPieces(
  lengths: ArrayLike<number>,
  max: number,
  overlong: Overlong,
): { pieces: Piece[]; cutRows: number; cutTokens: number } {
  const pieces: Piece[] = [];
  let [start, cutRows, cutTokens] = [0, 0, 0];
  for (let row = 0; row < lengths.length; ++row) {
    const length = required(lengths[row]);
    const usedLength =
      length <= max || overlong === 'split' ? length : overlong === 'cut' ? max : 0;
    for (let at = 0; at < usedLength; at += max) {
      pieces.push({ start: start + at, length: Math.min(max, usedLength - at) });
    }
    if (usedLength < length) cutRows++;
    cutTokens += length - usedLength;
    start += length;
  }
  return { pieces, cutRows, cutTokens };
}

/**
 * Packs pieces by best-fit decreasing: takes the longest piece first and puts it in the fullest
 * sample with enough space. Equally long pieces keep their order. Source: Ding et al., "Fewer
 * Truncations Improve Language Modeling" (2024).
 */
export function packBestFit(pieces: readonly Piece[], capacity: number): Piece[][] {
  const order = pieces.map((_, i) => i);
  const lengthOf = (i: number): number => required(pieces[i]).length;
  order.sort((a, b) => lengthOf(b) - lengthOf(a) || a - b);
  const samples: Piece[][] = [];
  const index = new FreeTokenIndex(capacity);
  for (const i of order) {
    const piece = required(pieces[i]);
    const target = index.take(piece.length);
    const number = target ? target.sample : samples.push([]) - 1;
    required(samples[number]).push(piece);
    index.put(number, (target ? target.free : capacity) - piece.length);
  }
  return samples;
}

/**
 * Indexes samples by their free tokens. A tree over the numbers finds the smallest sufficient
 * number.
 */
class FreeTokenIndex {
  private readonly leaves: number;
  private readonly has: Uint8Array;
  private readonly samples: number[][];

  constructor(capacity: number) {
    this.leaves = 2 ** Math.ceil(Math.log2(capacity + 1));
    this.has = new Uint8Array(2 * this.leaves);
    this.samples = Array.from({ length: capacity + 1 }, () => []);
  }

  put(sample: number, free: number): void {
    required(this.samples[free]).push(sample);
    this.mark(free);
  }

  /**
   * Removes and returns the sample with the fewest free tokens, at least `min`; null if there is
   * none.
   */
  take(min: number): { sample: number; free: number } | null {
    const free = this.firstFrom(min);
    if (free < 0) return null;
    const sample = required(required(this.samples[free]).pop());
    this.mark(free);
    return { sample, free };
  }

  private mark(free: number): void {
    let node = free + this.leaves;
    this.has[node] = required(this.samples[free]).length > 0 ? 1 : 0;
    for (node >>= 1; node > 0; node >>= 1) {
      this.has[node] = required(this.has[2 * node]) | required(this.has[2 * node + 1]);
    }
  }

  private firstFrom(min: number): number {
    let node = min + this.leaves;
    if (node >= 2 * this.leaves) return -1;
    while (!this.has[node]) {
      // Goes up until a set bit is to the right, then down to its left end.
      while (node % 2 === 1) node >>= 1;
      if (node === 0) return -1;
      node++;
    }
    while (node < this.leaves) node = this.has[2 * node] ? 2 * node : 2 * node + 1;
    return node - this.leaves;
  }
}

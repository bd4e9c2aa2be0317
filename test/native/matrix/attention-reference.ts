// The formulas of attention and its gradients, with every filter.
import type { AttentionArgs, AttentionDropout } from '../../../lib/runtime/kernels.generated.js';
import { seesBlock } from './block-layouts.js';
import type { Values } from './harness.js';
import { philox } from './philox.js';

const { exp, floor, log, max, tanh } = Math;

/** The sizes of one attention. */
export interface Sizes {
  b: number;
  h: number;
  hk: number;
  t: number;
  s: number;
  d: number;
  causal: boolean;
  filter?: Filter;
}

/**
 * Masks other than causality. `repeats` are the dims of [B, H, T, S] along which the mask is
 * broadcast.
 */
export interface Filter {
  title: string;
  mask?: { as: 'bool' | 'f32' | 'like q'; repeats: readonly number[]; transposed?: boolean };
  keyMask?: 'bool' | 'f32' | 'like q';
  lengths?: readonly number[];
  documents?: DocumentKind;
  window?: number;
  layout?: { block: number; shared?: boolean };
  dropout?: AttentionDropout;
  /** Bound of the scaled scores. */
  cap?: number;
}

/** Documents in a row: packed, with padding before or after them, only padding, or scattered. */
export type DocumentKind = 'packed' | 'left' | 'right' | 'none' | 'scattered';

/** Dropout that keeps all weights. */
export const keepAll: AttentionDropout = {
  p: 0,
  seed: 0,
  offset: 0,
  sample: 1,
  rank: 0,
  ranks: 1,
  head: 0,
  heads: 0,
};

/** Attention arguments for masks and dropout. */
export type Seen = Omit<AttentionArgs, 'q' | 'k' | 'v' | 'out' | 'lse' | 'scale' | 'causal'>;

/** No mask and no dropout. */
export const allSeen: Seen = {
  mask: null,
  keyMask: null,
  keyLengths: null,
  queryDocuments: null,
  keyDocuments: null,
  layout: null,
  window: 0,
  block: 0,
  cap: 0,
  dropout: keepAll,
};

/** The document of token i of n in row b. */
function documentOf(kind: DocumentKind, b: number, i: number, n: number): number {
  const lengths = [7 + 3 * b, 1, 40, 33, 96, 2];
  const pad = 5 + 37 * b;
  if (kind === 'none') return -1;
  if (kind === 'scattered') return ((i * i + b + floor(i / 45)) % 4) - 1;
  if (kind === 'left' && i < pad) return -7;
  if (kind === 'right' && i >= n - pad) return -1;
  let [rest, document] = [kind === 'left' ? i - pad : i, 0];
  for (; rest >= lengths[document % 6]!; ++document) rest -= lengths[document % 6]!;
  return 3 + 2 * document;
}

/** Documents [b, n]: the last n columns of `of`, because queries are the last of the keys. */
export function documentRows(kind: DocumentKind, b: number, n: number, of = n): Float64Array {
  const fullValue = max(n, of);
  return Float64Array.from({ length: b * n }, (_, i) =>
    documentOf(kind, floor(i / n), (i % n) + fullValue - n, fullValue),
  );
}

/** The sum of n products, from element i of a and element j of b on. */
function dot(a: Float64Array, i: number, b: Float64Array, j: number, n: number): number {
  let [even, odd] = [0, 0];
  let c = 0;
  for (; c + 1 < n; c += 2) {
    even += a[i + c]! * b[j + c]!;
    odd += a[i + c + 1]! * b[j + c + 1]!;
  }
  return c < n ? even + odd + a[i + c]! * b[j + c]! : even + odd;
}

/** A number for a row, head, query and key. */
type OfPair = (b: number, h: number, t: number, s: number) => number;

/**
 * The bias of the score of query t and key s from masks and lengths; minus infinity hides the key.
 * Null if nothing is hidden.
 */
function biasOf(z: Sizes, v: Values): OfPair | null {
  const { mask, keyMask, window = 0, layout } = z.filter ?? {};
  const { keyLengths, queryDocuments, keyDocuments } = v;
  const isPlain = !mask && !keyMask && !layout && !keyLengths && !queryDocuments;
  if (isPlain && window === 0) return null;
  const term = (as: string | undefined, values: Float64Array | undefined, at: number): number => {
    if (as === undefined) return 0;
    const x = values![at]!;
    if (as === 'bool') return x ? 0 : -Infinity;
    return x < -1e30 ? -Infinity : x;
  };
  const later = z.s - z.t;
  return (b, h, t, s) => {
    if (keyLengths && s >= keyLengths[b]!) return -Infinity;
    const away = t + later - s;
    if (window > 0 && (away >= window || -away >= window)) return -Infinity;
    if (queryDocuments && keyDocuments) {
      const document = queryDocuments[b * z.t + t]!;
      if (document < 0 || document !== keyDocuments[b * z.s + s]!) return -Infinity;
    }
    if (layout) {
      const [query, key] = [floor(t / layout.block), floor(s / layout.block)];
      if (!seesBlock(layout.shared ? 0 : h, query, key)) return -Infinity;
    }
    const place = ((b * z.h + h) * z.t + t) * z.s + s;
    return term(mask?.as, v.mask, place) + term(keyMask, v.keyMask, b * z.s + s);
  };
}

/** The dropout factor for query t and key s: two queries by two keys share a block of Philox.
 * Null without dropout. */
function factorOf(z: Sizes): OfPair | null {
  const { p, seed, offset, sample, rank, ranks, head, heads } = z.filter?.dropout ?? keepAll;
  if (p === 0) return null;
  const [rows, columns] = [floor((z.t + 1) / 2), floor((z.s + 1) / 2)];
  const drawn = new Map<number, readonly number[]>();
  return (b, h, t, s) => {
    const row = b + (floor(b / sample) * (ranks - 1) + rank) * sample;
    const drawnHead = row * (heads || z.h) + head + h;
    const block = (drawnHead * rows + floor(t / 2)) * columns + floor(s / 2);
    const words = drawn.get(block) ?? philox(seed, offset, block);
    drawn.set(block, words);
    const word = words[(t % 2) * 2 + (s % 2)]!;
    return (word >>> 8) * 2 ** -24 >= Math.fround(p) ? 1 / (1 - p) : 0;
  };
}

/** One query, the key head that it reads, and the element at which its row starts. */
interface Query {
  b: number;
  h: number;
  t: number;
  start: number;
  /** The element at which the rows of its keys start. */
  keys: number;
}

/**
 * Calls f for every query with its probabilities over the visible keys, and the derivative of each
 * score by its product, which a cap makes smaller.
 */
function forEachQuery(
  z: Sizes,
  v: Values,
  scale: number,
  f: (query: Query, p: Float64Array, lse: number, slopes: Float64Array) => void,
): void {
  const [q, k, d] = [v.q!, v.k!, z.d];
  const bias = biasOf(z, v);
  const { cap = 0 } = z.filter ?? {};
  const group = z.h / z.hk;
  for (let b = 0; b < z.b; ++b) {
    for (let h = 0; h < z.h; ++h) {
      const keys = (b * z.hk + floor(h / group)) * z.s * d;
      for (let t = 0; t < z.t; ++t) {
        const seen = z.causal ? max(0, t + (z.s - z.t) + 1) : z.s;
        const start = ((b * z.h + h) * z.t + t) * d;
        const scores = new Float64Array(seen);
        const slopes = new Float64Array(seen).fill(1);
        for (let s = 0; s < seen; ++s) {
          const added = bias ? bias(b, h, t, s) : 0;
          scores[s] = added;
          if (added === -Infinity) continue;
          const product = scale * dot(q, start, k, keys + s * d, d);
          const bound = cap ? tanh(product / cap) : 0;
          scores[s] = (cap ? cap * bound : product) + added;
          slopes[s] = 1 - bound * bound;
        }
        f({ b, h, t, start, keys }, ...softmax(scores), slopes);
      }
    }
  }
}

/** Probabilities and log-sum-exp; minus infinity if all keys are hidden. */
function softmax(scores: Float64Array): [Float64Array, number] {
  let largest = -Infinity;
  for (let s = 0; s < scores.length; ++s) if (scores[s]! > largest) largest = scores[s]!;
  if (largest === -Infinity) return [scores.fill(0), -Infinity];
  let sum = 0;
  for (let s = 0; s < scores.length; ++s) sum += exp(scores[s]! - largest);
  const lse = largest + log(sum);
  for (let s = 0; s < scores.length; ++s) scores[s] = exp(scores[s]! - lse);
  return [scores, lse];
}

export function attend(
  z: Sizes,
  v: Values,
  scale: number,
): { out: Float64Array; lse: Float64Array } {
  const out = new Float64Array(z.b * z.h * z.t * z.d);
  const lse = new Float64Array(z.b * z.h * z.t);
  const [value, d] = [v.v!, z.d];
  const factor = factorOf(z);
  forEachQuery(z, v, scale, ({ b, h, t, start, keys }, p, logSum) => {
    for (let s = 0; s < p.length; ++s) {
      if (!(p[s]! > 0)) continue;
      const weight = factor ? p[s]! * factor(b, h, t, s) : p[s]!;
      const row = keys + s * d;
      for (let c = 0; c < d; ++c) out[start + c]! += weight * value[row + c]!;
    }
    lse[(b * z.h + h) * z.t + t] = logSum;
  });
  return { out, lse };
}

export function attendBackward(z: Sizes, v: Values, scale: number): Record<string, Float64Array> {
  const [q, k, value, out, dout] = [v.q!, v.k!, v.v!, v.out!, v.dout!];
  const like = (x: Float64Array) => new Float64Array(x.length);
  const [dq, dk, dv] = [like(q), like(k), like(value)];
  const d = z.d;
  const factor = factorOf(z);
  forEachQuery(z, v, scale, ({ b, h, t, start, keys }, p, _lse, slopes) => {
    const delta = dot(dout, start, out, start, d);
    for (let s = 0; s < p.length; ++s) {
      if (p[s] === 0) continue;
      const kept = factor ? factor(b, h, t, s) : 1;
      const row = keys + s * d;
      const ds = p[s]! * (kept * dot(dout, start, value, row, d) - delta) * slopes[s]! * scale;
      const weight = kept * p[s]!;
      for (let c = 0; c < d; ++c) {
        dv[row + c]! += weight * dout[start + c]!;
        dq[start + c]! += ds * k[row + c]!;
        dk[row + c]! += ds * q[start + c]!;
      }
    }
  });
  return { dq, dk, dv };
}

// Attention against the formulas, with grouped heads, caches and packed strides.
import type { DType } from '../../../lib/runtime/dtype.js';
import type { AttentionArgs, AttentionDropout } from '../../../lib/runtime/kernels.generated.js';
import { contiguousStrides } from '../../../lib/runtime/view.js';
import { layoutWords, seesBlock } from './block-layouts.js';
import {
  close,
  input,
  type Layout,
  type MatrixCase,
  type Operand,
  opCase,
  output,
  type Values,
} from './harness.js';
import { broadcast, floating, paddedLayout, permutedLayout } from './layouts.js';
import { type Random, roundTo } from './numbers.js';
import { philox } from './philox.js';

const { exp, floor, log, max, sqrt } = Math;

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
}

/** Documents in a row: packed, with padding before or after them, only padding, or scattered. */
type DocumentKind = 'packed' | 'left' | 'right' | 'none' | 'scattered';

/** Dropout that keeps all weights. */
export const keepAll: AttentionDropout = {
  ...{ p: 0, seed: 0, offset: 0, sample: 1, rank: 0, ranks: 1, head: 0, heads: 0 },
};

/** Attention arguments for masks and dropout. */
export type Seen = Omit<AttentionArgs, 'q' | 'k' | 'v' | 'out' | 'lse' | 'scale' | 'causal'>;

/** No mask and no dropout. */
export const allSeen: Seen = {
  ...{ mask: null, keyMask: null, keyLengths: null, queryDocuments: null, keyDocuments: null },
  ...{ layout: null, window: 0, block: 0, dropout: keepAll },
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
function documentRows(kind: DocumentKind, b: number, n: number, of = n): Float64Array {
  const whole = max(n, of);
  return Float64Array.from({ length: b * n }, (_, i) =>
    documentOf(kind, floor(i / n), (i % n) + whole - n, whole),
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

/** Calls f for every query with its probabilities over the visible keys. */
function forEachQuery(
  z: Sizes,
  v: Values,
  scale: number,
  f: (query: Query, p: Float64Array, lse: number) => void,
): void {
  const [q, k, d] = [v.q!, v.k!, z.d];
  const bias = biasOf(z, v);
  const group = z.h / z.hk;
  for (let b = 0; b < z.b; ++b) {
    for (let h = 0; h < z.h; ++h) {
      const keys = (b * z.hk + floor(h / group)) * z.s * d;
      for (let t = 0; t < z.t; ++t) {
        const seen = z.causal ? max(0, t + (z.s - z.t) + 1) : z.s;
        const start = ((b * z.h + h) * z.t + t) * d;
        const scores = new Float64Array(seen);
        for (let s = 0; s < seen; ++s) {
          const added = bias ? bias(b, h, t, s) : 0;
          scores[s] = added;
          if (added > -Infinity) scores[s] = scale * dot(q, start, k, keys + s * d, d) + added;
        }
        f({ b, h, t, start, keys }, ...softmax(scores));
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

function attend(z: Sizes, v: Values, scale: number): { out: Float64Array; lse: Float64Array } {
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

function attendBackward(z: Sizes, v: Values, scale: number): Record<string, Float64Array> {
  const [q, k, value, out, dout] = [v.q!, v.k!, v.v!, v.out!, v.dout!];
  const like = (x: Float64Array) => new Float64Array(x.length);
  const [dq, dk, dv] = [like(q), like(k), like(value)];
  const d = z.d;
  const factor = factorOf(z);
  forEachQuery(z, v, scale, ({ b, h, t, start, keys }, p) => {
    const delta = dot(dout, start, out, start, d);
    for (let s = 0; s < p.length; ++s) {
      if (p[s] === 0) continue;
      const kept = factor ? factor(b, h, t, s) : 1;
      const row = keys + s * d;
      const ds = p[s]! * (kept * dot(dout, start, value, row, d) - delta) * scale;
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

/** [B, H, T, D] as a slice of a packed [B, T, 3 H D] row, without the two others. */
function packedLayout(shape: readonly number[], lead: number): Layout {
  const [, h, t, d] = shape as [number, number, number, number];
  return { lead, strides: [t * 3 * h * d, d, 3 * h * d, 1] };
}

type LayoutKind = 'contiguous' | 'packed' | 'padded' | 'heads last';

function layoutOf(kind: LayoutKind, shape: readonly number[]): Layout {
  if (kind === 'packed') return packedLayout(shape, 16);
  if (kind === 'padded') return paddedLayout(shape, 3, 5);
  return kind === 'heads last' ? permutedLayout(shape, [0, 2, 1, 3]) : {};
}

/**
 * Bools or numbers that hide about a third of the keys, some rows, and all keys of the second
 * query.
 */
function maskValues(
  as: string,
  shape: readonly number[],
  repeats: readonly number[],
  random: Random,
): Float64Array {
  const kept = shape.map((size, d) => (repeats.includes(d) ? 1 : size));
  const drawn = random.normal(kept.reduce((x, y) => x * y, 1));
  const strides = contiguousStrides(kept).map((stride, d) => (repeats.includes(d) ? 0 : stride));
  return Float64Array.from({ length: shape.reduce((x, y) => x * y, 1) }, (_, i) => {
    let [rest, place] = [i, 0];
    const index = [...shape];
    for (let d = shape.length - 1; d >= 0; --d) {
      index[d] = rest % shape[d]!;
      rest = floor(rest / shape[d]!);
      place += index[d]! * strides[d]!;
    }
    const row = shape.length === 4 && !repeats.includes(2) ? index[2] : -1;
    const hidden = row === 1 || drawn[place]! > 0.4;
    if (as === 'bool') return hidden ? 0 : 1;
    return hidden ? (place % 2 ? -Infinity : -3e38) : 2 * drawn[place]!;
  });
}

/** The operands that hide keys; null for a mask that the filter leaves out. */
function filterOperands(dtype: DType, z: Sizes, random: Random): Record<string, Operand | null> {
  const { mask, keyMask, lengths, documents, layout } = z.filter ?? {};
  const dtypeOf = (as: 'bool' | 'f32' | 'like q'): DType => (as === 'like q' ? dtype : as);
  /** Rounded to the dtype, because the lse for the backward is computed from these values. */
  const storeMask = (values: Float64Array, as: 'bool' | 'f32' | 'like q'): Float64Array =>
    values.map((x) => roundTo(x, dtypeOf(as)));
  const shape = [z.b, z.h, z.t, z.s];
  const operands: Record<string, Operand | null> = {
    ...{ mask: null, keyMask: null, keyLengths: null },
    ...{ queryDocuments: null, keyDocuments: null, layout: null },
  };
  if (layout) {
    const heads = layout.shared ? 1 : z.h;
    const blocks = floor((z.t + layout.block - 1) / layout.block);
    const shape = [heads, blocks, floor((blocks + 31) / 32)];
    operands.layout = input('i32', shape, layoutWords(heads, blocks));
  }
  if (mask) {
    const values = maskValues(mask.as, shape, mask.repeats, random);
    const layout = mask.transposed
      ? permutedLayout(shape, [0, 1, 3, 2])
      : broadcast(shape, mask.repeats, 5);
    operands.mask = input(dtypeOf(mask.as), shape, storeMask(values, mask.as), layout);
  }
  if (keyMask) {
    const values = maskValues(keyMask, [z.b, z.s], [], random);
    const layout = paddedLayout([z.b, z.s]);
    operands.keyMask = input(dtypeOf(keyMask), [z.b, z.s], storeMask(values, keyMask), layout);
  }
  if (lengths) operands.keyLengths = input('i32', [z.b], lengths);
  if (documents) {
    const [rows, keys] = [
      [z.b, z.t],
      [z.b, z.s],
    ] as const;
    const queries = documentRows(documents, z.b, z.t, z.s);
    operands.queryDocuments = input('i32', rows, queries, permutedLayout(rows, [1, 0]));
    operands.keyDocuments = input('i32', keys, documentRows(documents, z.b, z.s, z.t), { lead: 3 });
  }
  return operands;
}

const argsOf = ({ causal, filter }: Sizes, scale: number): Record<string, unknown> => ({
  ...{ scale, causal },
  ...{ window: filter?.window ?? 0, dropout: filter?.dropout ?? keepAll },
  block: filter?.layout?.block ?? 0,
});

/** Forward and backward of one attention. */
export function attentions(dtype: DType, z: Sizes, kind: LayoutKind): MatrixCase[] {
  const statistic: DType = dtype === 'f64' ? 'f64' : 'f32';
  const shape = [z.b, z.h, z.t, z.d];
  const keyShape = [z.b, z.hk, z.s, z.d];
  const scale = 1 / sqrt(max(z.d, 1));
  const title = `B${z.b} H${z.h}/${z.hk} T${z.t} S${z.s} D${z.d}${z.causal ? ' causal' : ''} ${z.filter?.title ?? kind}`;
  const at = (size: readonly number[]): Layout => layoutOf(kind, size);
  const draw = (random: { normal(n: number): Float64Array }, size: readonly number[]): Operand =>
    input(dtype, size, random.normal(size.reduce((x, y) => x * y, 1)), at(size));
  /** Keys or values; rows behind a length are NaN, because no kernel may use them. */
  const drawKeys = (random: { normal(n: number): Float64Array }): Operand => {
    const values = random.normal(keyShape.reduce((x, y) => x * y, 1));
    z.filter?.lengths?.forEach((length, b) => {
      const from = max(0, length);
      for (let head = b * z.hk; from < z.s && head < (b + 1) * z.hk; ++head)
        values.fill(NaN, (head * z.s + from) * z.d, (head + 1) * z.s * z.d);
    });
    return input(dtype, keyShape, values, at(keyShape));
  };
  const forward = opCase({
    op: 'Attention',
    dtype,
    title,
    build: (random) => ({
      operands: {
        q: draw(random, shape),
        k: drawKeys(random),
        v: drawKeys(random),
        out: output(dtype, shape, close(dtype, 2, 'tensor'), at(shape)),
        lse: output(statistic, [z.b, z.h, z.t], {
          ...close(statistic, 2, 'tensor'),
          absolute: statistic === 'f64' ? 1e-13 : 1e-5,
        }),
        ...filterOperands(dtype, z, random),
      },
      args: argsOf(z, scale),
      reference: (v) => ({ ...attend(z, v, scale) }),
    }),
  });
  const backward = opCase({
    op: 'AttentionBackward',
    dtype,
    title,
    build(random) {
      const [q, k, v] = [draw(random, shape), drawKeys(random), drawKeys(random)];
      const filter = filterOperands(dtype, z, random);
      const plain = Object.entries({ q, k, v, ...filter }).flatMap(([name, operand]) =>
        operand ? [[name, Float64Array.from(operand.values!)] as const] : [],
      );
      const result = attend(z, Object.fromEntries(plain), scale);
      const check = { ...close(dtype, 3, 'tensor'), absolute: dtype === 'f64' ? 1e-14 : 1e-5 };
      return {
        operands: {
          q,
          k,
          v,
          out: input(dtype, shape, result.out, at(shape)),
          dout: draw(random, shape),
          lse: input(statistic, [z.b, z.h, z.t], result.lse),
          dq: output(dtype, shape, check, at(shape)),
          dk: output(dtype, keyShape, check, at(keyShape)),
          dv: output(dtype, keyShape, check, at(keyShape)),
          ...filter,
        },
        args: argsOf(z, scale),
        reference: (values) => attendBackward(z, values, scale),
      };
    },
  });
  return [forward, backward];
}

function everyAttention(): MatrixCase[] {
  const list: [Sizes, LayoutKind][] = [];
  const add = (
    b: number,
    heads: readonly [number, number],
    lengths: readonly [number, number],
    d: number,
    kind: LayoutKind,
  ): void => {
    const [h, hk] = heads;
    const [t, s] = lengths;
    for (const causal of [false, true]) list.push([{ b, h, hk, t, s, d, causal }, kind]);
  };
  for (const t of [1, 3, 17, 33, 65, 129]) add(2, [3, 3], [t, t], 8, 'packed');
  for (const d of [1, 3, 16, 17, 32, 40, 64, 80, 96, 128, 192, 256])
    add(1, [2, 2], [35, 35], d, 'contiguous');
  add(2, [4, 2], [17, 17], 16, 'heads last');
  add(1, [6, 1], [33, 33], 64, 'contiguous');
  add(1, [2, 2], [1, 129], 64, 'contiguous');
  add(1, [2, 1], [5, 70], 32, 'padded');
  add(1, [2, 2], [70, 5], 32, 'contiguous');
  add(1, [5, 5], [67, 67], 64, 'packed');
  add(1, [1, 1], [65, 65], 128, 'padded');
  add(0, [2, 2], [3, 3], 4, 'contiguous');
  add(2, [0, 0], [3, 3], 4, 'contiguous');
  add(1, [2, 2], [0, 5], 4, 'contiguous');
  return floating.flatMap((dtype) => list.flatMap(([z, kind]) => attentions(dtype, z, kind)));
}

/** Every form of mask, in each dim, at sizes around the tile sizes. */
function filteredAttentions(): MatrixCase[] {
  const list: Sizes[] = [];
  const add = (
    [b, h, hk]: readonly [number, number, number],
    [t, s, d]: readonly [number, number, number],
    filter: Filter,
  ): void => {
    for (const causal of [false, true]) list.push({ b, h, hk, t, s, d, causal, filter });
  };
  const mask = (
    as: 'bool' | 'f32' | 'like q',
    dims: string,
    more: Omit<Filter, 'title' | 'mask'> & { transposed?: boolean } = {},
  ): Filter => {
    const { transposed = false, ...rest } = more;
    const repeats = [0, 1, 2, 3].filter((d) => !dims.includes('bhts'[d]!));
    const also = Object.entries(rest).map(([name, what]) =>
      name === 'dropout' ? ', dropout' : `, ${name} ${what}`,
    );
    const title = `mask ${as} ${dims}${transposed ? ' transposed' : ''}${also.join('')}`;
    return { title, mask: { as, repeats, transposed }, ...rest };
  };
  const lengths = (...numbers: number[]): Filter => ({
    title: `lengths ${numbers}`,
    lengths: numbers,
  });
  add([2, 3, 3], [35, 67, 16], mask('bool', 'bhts'));
  add([1, 1, 1], [65, 65, 64], mask('bool', 'ts'));
  add([1, 4, 2], [33, 70, 32], mask('f32', 'ts'));
  add([2, 2, 2], [17, 17, 8], mask('like q', 'hts'));
  add([1, 2, 1], [20, 129, 80], mask('like q', 'bs'));
  add([1, 2, 2], [19, 37, 128], mask('f32', 'bht'));
  add([2, 2, 2], [1, 5, 3], mask('bool', ''));
  add([1, 1, 1], [35, 20, 128], mask('f32', 'bhts', { transposed: true }));
  add([1, 2, 2], [9, 20, 136], mask('like q', 'bhts'));
  add([2, 1, 1], [129, 129, 16], { title: 'key mask bool', keyMask: 'bool' });
  add([2, 1, 1], [20, 35, 24], { title: 'key mask like q', keyMask: 'like q' });
  add([2, 1, 1], [65, 65, 48], mask('bool', 'ts', { keyMask: 'f32' }));
  add([3, 1, 1], [35, 70, 128], lengths(0, 70, 33));
  add([3, 2, 1], [17, 200, 40], lengths(64, 1, 129));
  add([2, 2, 2], [5, 9, 4], lengths(-3, 500));
  add([2, 2, 1], [19, 131, 96], mask('bool', 'hts', { keyMask: 'bool', lengths: [100, 131] }));
  add([1, 2, 2], [70, 5, 64], lengths(4));
  add([2, 2, 1], [35, 141, 256], lengths(70, 129));
  add([1, 2, 1], [33, 67, 256], mask('bool', 'ts', { keyMask: 'bool' }));
  add([2, 2, 2], [3, 0, 4], lengths(0, 0));
  const dropout = { ...keepAll, p: 0.3, seed: 2 ** 40 + 7, offset: 3 };
  add([1, 2, 1], [67, 69, 64], { title: 'dropout', dropout });
  add([1, 1, 1], [35, 131, 128], { title: 'dropout', dropout });
  add([1, 2, 1], [35, 70, 256], { title: 'dropout', dropout });
  add([2, 2, 2], [17, 20, 7], mask('bool', 'ts', { lengths: [20, 11], dropout }));
  const some = { ...dropout, head: 3, heads: 7 };
  add([2, 2, 1], [5, 33, 32], { title: 'dropout of heads 3 and 4 of 7', dropout: some });
  const dealt = { ...dropout, sample: 2, rank: 1, ranks: 3 };
  add([4, 2, 1], [5, 33, 32], { title: 'dropout of the second of 3 ranks', dropout: dealt });
  return floating.flatMap((dtype) => list.flatMap((z) => attentions(dtype, z, 'packed')));
}

export const cases: MatrixCase[] = [...everyAttention(), ...filteredAttentions()];

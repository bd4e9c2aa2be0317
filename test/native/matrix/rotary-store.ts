// Cases of FeedTokens, and of RotaryStore against the formulas of its three steps: any head width,
// row gaps, tokens without a slot, optional norms.
import type { DType } from '../../../lib/runtime/dtype.js';
import {
  close,
  exact,
  inPlaceOperand,
  input,
  type MatrixCase,
  opCase,
  output,
  sameAs,
  type Values,
} from './harness.js';
import { floating, paddedLayout } from './layouts.js';

const { floor, sqrt } = Math;

interface Sizes {
  tokens: number;
  h: number;
  hk: number;
  d: number;
  block: number;
  blocks: number;
}

const sizes: readonly Sizes[] = [
  { tokens: 5, h: 4, hk: 2, d: 8, block: 4, blocks: 3 },
  { tokens: 1, h: 1, hk: 1, d: 2, block: 1, blocks: 2 },
  { tokens: 33, h: 6, hk: 3, d: 64, block: 16, blocks: 9 },
  { tokens: 3, h: 3, hk: 3, d: 34, block: 8, blocks: 2 },
  { tokens: 2, h: 8, hk: 1, d: 256, block: 4, blocks: 2 },
  { tokens: 7, h: 4, hk: 1, d: 128, block: 64, blocks: 1 },
  { tokens: 0, h: 2, hk: 1, d: 8, block: 4, blocks: 2 },
  { tokens: 2, h: 2, hk: 1, d: 0, block: 4, blocks: 2 },
];

const ROWS = 37;
const EPS = 1e-5;

/** Slots of tokens, all different; every fourth token has no slot. */
function slotsOf({ tokens, block, blocks }: Sizes): number[] {
  const places = block * blocks;
  const step = [5, 7, 11].find((n) => places % n !== 0) as number;
  return Array.from({ length: tokens }, (_, n) => (n % 4 === 3 ? -1 - n : (n * step) % places));
}

/** One head, normalized if there is a norm weight, and rotated. */
export function rotateHead(
  v: Values,
  x: Float64Array,
  norm: Float64Array | undefined,
  token: number,
) {
  const half = x.length / 2;
  const mean = x.reduce((sum, value) => sum + value * value, 0) / x.length;
  const scale = norm ? 1 / sqrt(mean + EPS) : 1;
  const normal = x.map((value, i) => value * scale * (norm?.[i] ?? 1));
  return normal.map((value, i) => {
    const angle = v.positions![token]! * half + (i % half);
    const other = i < half ? -normal[i + half]! : normal[i - half]!;
    return value * v.cos![angle]! + other * v.sin![angle]!;
  });
}

function reference(z: Sizes, v: Values, isInPlace: boolean) {
  const { tokens, h, hk, d, block } = z;
  const out = new Float64Array(v.q!.length);
  const pool = Float64Array.from(v.pool!);
  const slots = slotsOf(z);
  for (let n = 0; n < tokens; ++n) {
    for (let head = 0; head < h; ++head) {
      const at = (n * h + head) * d;
      out.set(rotateHead(v, v.q!.subarray(at, at + d), v.qNorm, n), at);
    }
    const slot = slots[n]!;
    for (let head = 0; slot >= 0 && head < hk; ++head) {
      const at = (n * hk + head) * d;
      const row = (which: number): number =>
        (((floor(slot / block) * 2 + which) * hk + head) * block + (slot % block)) * d;
      pool.set(rotateHead(v, v.k!.subarray(at, at + d), v.kNorm, n), row(0));
      pool.set(v.v!.subarray(at, at + d), row(1));
    }
  }
  return isInPlace ? { q: out, pool } : { out, pool };
}

type Mode = 'plain' | 'norms' | 'gaps' | 'in place';

function stores(dtype: DType, z: Sizes, mode: Mode): MatrixCase {
  const { tokens, h, hk, d, block, blocks } = z;
  const [shape, kept] = [
    [tokens, h, d],
    [tokens, hk, d],
  ];
  const layout = (of: number[]) => (mode === 'gaps' ? paddedLayout(of) : {});
  const statistic: DType = dtype === 'f64' ? 'f64' : 'f32';
  const hasNorms = mode === 'norms' || mode === 'in place';
  return opCase({
    op: 'RotaryStore',
    dtype,
    title: `${tokens} x${h}/${hk} D${d} block ${block} ${mode}`,
    build(random) {
      const angles = random.uniform((ROWS * d) / 2, 0, 7);
      const check = close(dtype, hasNorms ? 3 : 1, 'tensor');
      const q = input(dtype, shape, random.normal(tokens * h * d), layout(shape));
      const norm = () => (hasNorms ? input(dtype, [d], random.normal(d)) : null);
      const positions = Array.from({ length: tokens }, (_, n) => (n * 5) % ROWS);
      const count = blocks * block * 2 * hk * d;
      return {
        operands: {
          q: mode === 'in place' ? inPlaceOperand(q, check) : q,
          k: input(dtype, kept, random.normal(tokens * hk * d), layout(kept)),
          v: input(dtype, kept, random.normal(tokens * hk * d)),
          out: mode === 'in place' ? sameAs(q, 'q') : output(dtype, shape, check, layout(shape)),
          cos: input(statistic, [ROWS, d / 2], angles.map(Math.cos), { lead: 5 }),
          sin: input(statistic, [ROWS, d / 2], angles.map(Math.sin)),
          positions: input('i32', [tokens], positions, { lead: 1 }),
          qNorm: norm(),
          kNorm: norm(),
          slots: input('i32', [tokens], slotsOf(z), { lead: 3 }),
          pool: inPlaceOperand(
            input(dtype, [blocks, 2, hk, block, d], random.normal(count)),
            check,
          ),
        },
        args: { eps: EPS },
        reference: (v) => reference(z, v, mode === 'in place'),
      };
    },
  });
}

/** Every third token refers to a sampled one by its slot; some slots have no sample. */
function feeds(count: number, isInPlace: boolean): MatrixCase {
  const size = 7;
  const tokens = Array.from({ length: count }, (_, n) => (n % 3 === 1 ? -1 - (n % size) : n * 11));
  return opCase({
    op: 'FeedTokens',
    dtype: 'i32',
    title: `${count}${isInPlace ? ' in place' : ''}`,
    build() {
      const operand = input('i32', [count], tokens, { lead: 2 });
      return {
        operands: {
          tokens: isInPlace ? inPlaceOperand(operand, exact) : operand,
          previous: input('i32', [size], [5, -1, 900, 0, -2, 31, 7], { lead: 1 }),
          out: isInPlace ? sameAs(operand, 'tokens') : output('i32', [count], exact),
        },
        reference(v) {
          const fed = v.tokens!.map((token) =>
            token >= 0 ? token : Math.max(0, v.previous![-1 - token]!),
          );
          return isInPlace ? { tokens: fed } : { out: fed };
        },
      };
    },
  });
}

export const cases: MatrixCase[] = [
  ...floating.flatMap((dtype) =>
    sizes.flatMap((z) =>
      (['plain', 'norms', 'gaps', 'in place'] as const).map((mode) => stores(dtype, z, mode)),
    ),
  ),
  ...[0, 1, 19, 300].flatMap((count) => [false, true].map((inPlace) => feeds(count, inPlace))),
];

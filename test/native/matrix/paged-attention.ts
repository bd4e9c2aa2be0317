// Cases of PagedStore and PagedAttention: ragged batches of prompts and single tokens, windows,
// grouped heads, blocks in any order, tables with unused entries.
import { type DType, statisticOf } from '../../../lib/runtime/dtype.js';
import {
  close,
  exact,
  inPlaceOperand,
  input,
  type MatrixCase,
  opCase,
  output,
  type Values,
} from './harness.js';
import { floating, paddedLayout } from './layouts.js';
import type { Random } from './numbers.js';
import { type Sizes, sizes } from './paged-sizes.js';

const { ceil, exp, floor, log, max, sqrt, tanh } = Math;

/**
 * Blocks of each sequence, all different and out of order; tables end with invalid block numbers.
 */
export function tablesOf(z: Sizes): { tables: number[][]; blocks: number; maxBlocks: number } {
  const used = z.sequences.map(([, tokens]) => ceil(tokens / z.block));
  const blocks = used.reduce((sum, n) => sum + n, 0) + 2;
  const maxBlocks = max(1, ...used) + 1;
  let next = 0;
  const tables = used.map((n) =>
    Array.from({ length: maxBlocks }, (_, i) => (i < n ? blocks - 1 - next++ : -1)),
  );
  return { tables, blocks, maxBlocks };
}

export function attend(
  z: Sizes,
  v: Values,
  scale: number,
): { out: Float64Array; lse: Float64Array } {
  const { h, hk, d, block, window = 0, cap } = z;
  const { maxBlocks } = tablesOf(z);
  const out = new Float64Array(v.q!.length);
  const tokens = z.sequences.reduce((sum, [queries]) => sum + queries, 0);
  const lse = new Float64Array(tokens * h).fill(Number.NEGATIVE_INFINITY);
  const { q, pool, tables, sinks } = v as Record<'q' | 'pool' | 'tables' | 'sinks', Float64Array>;
  /** The element of the pool at which a token's key (which 0) or value (1) starts. */
  const rowAt = (s: number, which: number, head: number, token: number): number => {
    const at = tables[s * maxBlocks + floor(token / block)]!;
    return (((at * 2 + which) * hk + head) * block + (token % block)) * d;
  };
  let n = 0;
  z.sequences.forEach(([queries, tokens], s) => {
    for (let i = 0; i < queries; ++i, ++n) {
      const end = tokens === 0 ? 0 : tokens - queries + i + 1;
      const first = window > 0 ? max(0, end - window) : 0;
      const scores = new Float64Array(end - first);
      for (let head = 0; head < h; ++head) {
        const start = (n * h + head) * d;
        const kept = floor(head / (h / hk));
        for (let token = first; token < end; ++token) {
          const row = rowAt(s, 0, kept, token);
          let sum = 0;
          for (let c = 0; c < d; ++c) sum += pool[row + c]! * q[start + c]!;
          scores[token - first] = cap ? cap * tanh((scale * sum) / cap) : scale * sum;
        }
        const top = max(...scores);
        const total = scores.reduce((sum, x) => sum + exp(x - top), 0);
        const all = total + (z.sinks ? exp(sinks[head]! - top) : 0);
        if (end > first) lse[n * h + head] = top + log(total);
        for (let token = first; token < end; ++token) {
          const weight = exp(scores[token - first]! - top) / all;
          const row = rowAt(s, 1, kept, token);
          for (let c = 0; c < d; ++c) out[start + c]! += weight * pool[row + c]!;
        }
      }
    }
  });
  return { out, lse };
}

function attention(dtype: DType, z: Sizes, invariant: boolean): MatrixCase {
  const { h, hk, d, block, window = 0 } = z;
  const { tables, blocks, maxBlocks } = tablesOf(z);
  const starts = [3];
  for (const [queries] of z.sequences) starts.push(starts.at(-1)! + queries);
  const tokens = starts.at(-1)! - 3;
  const shape = [tokens, h, d];
  const layout = z.padded ? paddedLayout(shape, 8) : {};
  const scale = 1 / sqrt(max(d, 1));
  return opCase({
    op: 'PagedAttention',
    dtype,
    title: `${z.title} H${h}/${hk} D${d} block ${block}${z.sinks ? ', sinks' : ''}${z.cap ? `, cap ${z.cap}` : ''}${invariant ? ', invariant' : ''}`,
    build: (random: Random) => ({
      operands: {
        q: input(dtype, shape, random.normal(tokens * h * d), layout),
        pool: input(
          dtype,
          [blocks, 2, hk, block, d],
          random.normal(blocks * 2 * hk * block * d),
          z.padded ? { lead: 5 } : {},
        ),
        tables: input(
          'i32',
          [tables.length, maxBlocks],
          tables.flat(),
          paddedLayout([tables.length, maxBlocks]),
        ),
        starts: input('i32', [starts.length], starts),
        lengths: input(
          'i32',
          [tables.length],
          z.sequences.map(([, length]) => length),
        ),
        out: output(dtype, shape, close(dtype, 2, 'tensor'), layout),
        lse: invariant ? output(statisticOf(dtype), [tokens, h], close(dtype, 2, 'tensor')) : null,
        sinks: z.sinks ? input(dtype, [h], random.uniform(h, -1, 4)) : null,
      },
      args: {
        scale,
        cap: z.cap ?? 0,
        window,
        invariant,
        longest: max(0, ...z.sequences.map(([queries]) => queries)),
      },
      reference: (v) => {
        const { out, lse } = attend(z, v, scale);
        return invariant ? { out, lse } : { out };
      },
    }),
  });
}

interface Stored {
  tokens: number;
  hk: number;
  d: number;
  block: number;
  blocks: number;
}

const stored: readonly Stored[] = [
  { tokens: 5, hk: 2, d: 8, block: 4, blocks: 3 },
  { tokens: 1, hk: 1, d: 3, block: 1, blocks: 2 },
  { tokens: 70, hk: 3, d: 64, block: 16, blocks: 9 },
  { tokens: 0, hk: 2, d: 8, block: 4, blocks: 2 },
  { tokens: 3, hk: 2, d: 0, block: 4, blocks: 2 },
];

/** Token n has slot 5 n of the pool, modulo the number of slots; every fourth has no slot. */
function store(dtype: DType, z: Stored, gaps: boolean): MatrixCase {
  const { tokens, hk, d, block, blocks } = z;
  const places = block * blocks;
  const step = [5, 7, 11].find((n) => places % n !== 0) as number;
  const slots = Float64Array.from({ length: tokens }, (_, n) =>
    n % 4 === 3 ? -1 - n : (n * step) % places,
  );
  const shape = [tokens, hk, d];
  const layout = gaps ? paddedLayout(shape) : {};
  return opCase({
    op: 'PagedStore',
    dtype,
    title: `${tokens} x${hk} D${d} block ${block}${gaps ? ', gaps' : ''}`,
    build: (random: Random) => ({
      operands: {
        k: input(dtype, shape, random.normal(tokens * hk * d), layout),
        v: input(dtype, shape, random.normal(tokens * hk * d)),
        slots: input('i32', [tokens], slots, { lead: 3 }),
        pool: inPlaceOperand(
          input(dtype, [blocks, 2, hk, block, d], random.normal(places * 2 * hk * d)),
          exact,
        ),
      },
      reference: (v) => {
        const pool = Float64Array.from(v.pool!);
        slots.forEach((slot, n) => {
          for (let i = 0; slot >= 0 && i < 2 * hk * d; ++i) {
            const which = floor(i / (hk * d));
            const head = floor(i / d) % hk;
            const row = ((floor(slot / block) * 2 + which) * hk + head) * block + (slot % block);
            const from = which ? v.v! : v.k!;
            pool[row * d + (i % d)] = from[(n * hk + head) * d + (i % d)]!;
          }
        });
        return { pool };
      },
    }),
  });
}

/**
 * Sizes that every kernel and every reduction of splits serves. The kernel on wgmma refuses sinks:
 * one of its sizes shows that another kernel takes over.
 */
const withSinks = sizes
  .filter(({ d, large, title }) =>
    large ? title === 'prompts of many heads' : d > 0 && title !== 'many heads of many texts',
  )
  .map((z) => ({ ...z, sinks: true }));

/** A cap in every kernel: without and with tensor cores, and on wgmma. */
const withCap = sizes.filter(({ d }) => d > 0).map((z) => ({ ...z, cap: 0.8 }));
const everySize = [...sizes, ...withSinks, ...withCap];

export const cases: MatrixCase[] = floating.flatMap((dtype) => [
  ...everySize
    .filter(({ large }) => !large || dtype === 'bf16' || dtype === 'f16')
    .map((z) => attention(dtype, z, false)),
  ...everySize.filter(({ d, large }) => d > 0 && !large).map((z) => attention(dtype, z, true)),
  ...stored.flatMap((z) => [false, true].map((gaps) => store(dtype, z, gaps))),
]);

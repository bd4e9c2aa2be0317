// Cases of RotaryAttention against the formulas of its two ops: sequences with a window, sinks or
// norms, groups of heads, more keys than a block of the GPU takes alone, and row gaps.
import type { DType } from '../../../lib/runtime/dtype.js';
import { close, inPlaceOperand, input, type MatrixCase, opCase, output } from './harness.js';
import { floating, paddedLayout } from './layouts.js';
import type { Random } from './numbers.js';
import { attend, tablesOf } from './paged-attention.js';
import type { Sizes as AttentionSizes } from './paged-sizes.js';
import { rotateHead } from './rotary-store.js';

const { floor, sqrt } = Math;

interface Sizes {
  title: string;
  h: number;
  hk: number;
  d: number;
  block: number;
  /** Tokens of each sequence; 0: a padding row, without a slot. */
  lengths: readonly number[];
  window?: number;
  sinks?: boolean;
  norms?: boolean;
  cap?: number;
  gaps?: boolean;
}

const sizes: readonly Sizes[] = [
  { title: 'sinks', h: 16, hk: 2, d: 64, block: 64, lengths: [200], sinks: true },
  { title: 'window', h: 4, hk: 1, d: 64, block: 16, lengths: [300, 5, 129], window: 128 },
  { title: 'first tokens', h: 8, hk: 2, d: 128, block: 16, lengths: [1, 16, 17, 0] },
  { title: 'two of a cluster', h: 4, hk: 2, d: 128, block: 64, lengths: [700], sinks: true },
  { title: 'a cluster', h: 4, hk: 2, d: 64, block: 32, lengths: [2500, 40], gaps: true },
  { title: 'cap', h: 8, hk: 2, d: 128, block: 16, lengths: [70, 300], cap: 0.7 },
  { title: 'long', h: 2, hk: 2, d: 64, block: 64, lengths: [4200] },
  { title: 'groups of 16', h: 32, hk: 2, d: 64, block: 24, lengths: [33, 100] },
  { title: 'groups of 17', h: 17, hk: 1, d: 64, block: 16, lengths: [50] },
  { title: 'odd blocks', h: 4, hk: 2, d: 128, block: 7, lengths: [90, 21], gaps: true },
  { title: 'norms', h: 4, hk: 2, d: 64, block: 16, lengths: [40, 3], norms: true },
  { title: 'narrow', h: 6, hk: 3, d: 34, block: 16, lengths: [40, 3], sinks: true },
  {
    title: 'many',
    h: 8,
    hk: 4,
    d: 64,
    block: 16,
    lengths: Array.from({ length: 40 }, (_, i) => i),
  },
  { title: 'none', h: 2, hk: 2, d: 64, block: 4, lengths: [] },
];

const ROWS = 37;

function turned(dtype: DType, z: Sizes): MatrixCase {
  const { h, hk, d, block, lengths, window = 0 } = z;
  const tokens = lengths.length;
  const attention: AttentionSizes = {
    ...z,
    sequences: lengths.map((length) => [1, length] as const),
  };
  const { tables, blocks, maxBlocks } = tablesOf(attention);
  const slots = lengths.map((length, s) =>
    length === 0 ? -1 : tables[s]![floor((length - 1) / block)]! * block + ((length - 1) % block),
  );
  const layout = (of: number[]) => (z.gaps ? paddedLayout(of, 8) : {});
  const [shape, kept] = [
    [tokens, h, d],
    [tokens, hk, d],
  ];
  const statistic: DType = dtype === 'f64' ? 'f64' : 'f32';
  const scale = 1 / sqrt(d);
  const starts = Array.from({ length: tokens + 1 }, (_, s) => s + 2);
  return opCase({
    op: 'RotaryAttention',
    dtype,
    title: `${z.title} ${tokens} x${h}/${hk} D${d} block ${block}`,
    build(random: Random) {
      const angles = random.uniform((ROWS * d) / 2, 0, 7);
      const norm = () => (z.norms ? input(dtype, [d], random.uniform(d, 0.5, 1.5)) : null);
      const count = blocks * 2 * hk * block * d;
      return {
        operands: {
          q: input(dtype, shape, random.normal(tokens * h * d), layout(shape)),
          k: input(dtype, kept, random.normal(tokens * hk * d), layout(kept)),
          v: input(dtype, kept, random.normal(tokens * hk * d), layout(kept)),
          cos: input(statistic, [ROWS, d / 2], angles.map(Math.cos)),
          sin: input(statistic, [ROWS, d / 2], angles.map(Math.sin)),
          positions: input(
            'i32',
            [tokens],
            lengths.map((_, n) => (n * 5) % ROWS),
            { lead: 1 },
          ),
          qNorm: norm(),
          kNorm: norm(),
          slots: input('i32', [tokens], slots, { lead: 3 }),
          pool: inPlaceOperand(
            input(dtype, [blocks, 2, hk, block, d], random.normal(count)),
            close(dtype, z.norms ? 3 : 1, 'tensor'),
          ),
          tables: input(
            'i32',
            [tables.length, maxBlocks],
            tables.flat(),
            paddedLayout([tables.length, maxBlocks]),
          ),
          starts: input('i32', [tokens + 1], starts),
          lengths: input('i32', [tokens], lengths),
          out: output(dtype, shape, close(dtype, 3, 'tensor'), layout(shape)),
          sinks: z.sinks ? input(dtype, [h], random.uniform(h, -1, 4)) : null,
        },
        args: { eps: 1e-5, scale, cap: z.cap ?? 0, window },
        reference(values) {
          const pool = Float64Array.from(values.pool!);
          const q = new Float64Array(values.q!.length);
          for (let n = 0; n < tokens; ++n) {
            for (let head = 0; head < h; ++head) {
              const at = (n * h + head) * d;
              q.set(rotateHead(values, values.q!.subarray(at, at + d), values.qNorm, n), at);
            }
            const slot = slots[n]!;
            for (let head = 0; slot >= 0 && head < hk; ++head) {
              const at = (n * hk + head) * d;
              const row = (which: number): number =>
                (((floor(slot / block) * 2 + which) * hk + head) * block + (slot % block)) * d;
              pool.set(rotateHead(values, values.k!.subarray(at, at + d), values.kNorm, n), row(0));
              pool.set(values.v!.subarray(at, at + d), row(1));
            }
          }
          return { out: attend(attention, { ...values, q, pool }, scale).out, pool };
        },
      };
    },
  });
}

export const cases: MatrixCase[] = floating.flatMap((dtype) => sizes.map((z) => turned(dtype, z)));

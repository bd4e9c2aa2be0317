// Cases of Multinomial against integers and logarithms in plain JavaScript: equal draws on every
// device.
import type { DType } from '../../../lib/runtime/dtype.js';
import { exact, input, type MatrixCase, opCase, output } from './harness.js';
import { floating, unaligned } from './layouts.js';
import { philox } from './philox.js';

const [seed, offset] = [99, 7];
const { fround, log1p, max, trunc } = Math;

/** The category of each draw, by the running sum of integer weights. */
function withReplacement(row: Float64Array, first: number, draws: number): number[] {
  const p = row.map(fround);
  const largest = p.reduce((a, b) => max(a, b), 0);
  let total = 0n;
  const sums = Array.from(p, (x) => {
    if (x > 0) total += BigInt(max(1, trunc(fround(x / largest) * 2 ** 38)));
    return total;
  });
  return Array.from({ length: draws }, (_, k) => {
    const [high, low] = philox(seed, offset, first + k) as [number, number];
    const target = (((BigInt(high) << 32n) | BigInt(low)) * total) >> 64n;
    return sums.findIndex((sum) => sum > target);
  });
}

/** The categories with the largest p / e, e exponential. */
function withoutReplacement(row: Float64Array, first: number, draws: number): number[] {
  const keys = Array.from(row, (p, i) => {
    const word = philox(seed, offset, Math.floor((first + i) / 4))[(first + i) % 4]!;
    return fround(p) / -log1p(-(word + 0.5) * 2 ** -32);
  });
  const order = keys.map((_, i) => i).sort((i, j) => keys[j]! - keys[i]! || i - j);
  return order.slice(0, draws);
}

interface Setting {
  rows: number;
  columns: number;
  draws: number;
  replacement: boolean;
}

const settings: readonly Setting[] = [
  ...[1, 3, 33, 1029, 5003].flatMap((columns) => [
    { rows: 3, columns, draws: Math.min(columns, 17), replacement: false },
    { rows: 3, columns, draws: 1, replacement: false },
    { rows: 3, columns, draws: 129, replacement: true },
  ]),
  { rows: 0, columns: 3, draws: 2, replacement: false },
  { rows: 2, columns: 3, draws: 0, replacement: true },
  { rows: 300, columns: 5, draws: 1, replacement: true },
  { rows: 300, columns: 5, draws: 2, replacement: false },
];

function multinomial(dtype: DType, setting: Setting, spread: 'even' | 'steep'): MatrixCase {
  const { rows, columns, draws, replacement } = setting;
  return opCase({
    op: 'Multinomial',
    dtype,
    title: `${draws} of [${rows},${columns}] ${spread}${replacement ? ' with replacement' : ''}`,
    build: (random) => {
      const even = random.uniform(rows * columns, 0.1, 1);
      // Five orders of magnitude; a third of the values are zero if enough columns remain.
      const steep = even.map((x, i) => (i % 3 === 1 && columns > 30 ? 0 : 10 ** (-5 * x)));
      return {
        operands: {
          in: input(dtype, [rows, columns], spread === 'even' ? even : steep, unaligned),
          index: output('i64', [rows, draws], exact, unaligned),
        },
        args: { replacement, seed, offset },
        reference: (v) => ({
          index: Array.from({ length: rows }, (_, r) => {
            const row = v.in!.subarray(r * columns, (r + 1) * columns);
            return replacement
              ? withReplacement(row, r * draws, draws)
              : withoutReplacement(row, r * columns, draws);
          }).flat(),
        }),
      };
    },
  });
}

export const cases: MatrixCase[] = floating.flatMap((dtype) =>
  settings.flatMap((setting) =>
    (['even', 'steep'] as const).map((spread) => multinomial(dtype, setting, spread)),
  ),
);

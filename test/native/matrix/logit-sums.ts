// Sums over rows of logits, of which metrics compute entropies and means.
import type { DType } from '../../../lib/runtime/dtype.js';
import * as kernels from '../../../lib/runtime/kernels.generated.js';
import { close, input, type Layout, type MatrixCase, opCase, output } from './harness.js';
import { aligned, floating, oddSizes, paddedLayout, unaligned } from './layouts.js';
import type { Mistake } from './mistake.js';

const IGNORE = -100;

interface Rows {
  dtype: DType;
  index: 'i32' | 'i64';
  rows: number;
  columns: number;
  layout: Layout;
}

const all: Rows[] = floating.flatMap((dtype) => [
  ...oddSizes
    .filter((columns) => columns > 0)
    .flatMap((columns): Rows[] => [
      { dtype, index: 'i32', rows: 7, columns, layout: unaligned },
      { dtype, index: 'i64', rows: 5, columns, layout: paddedLayout([5, columns], 11, 16) },
    ]),
  { dtype, index: 'i64', rows: 0, columns: 17, layout: aligned },
  { dtype, index: 'i64', rows: 3, columns: 50257, layout: paddedLayout([3, 50257], 47, 16) },
  { dtype, index: 'i32', rows: 3, columns: 128256, layout: aligned },
]);

function logitSums({ dtype, index, rows, columns, layout }: Rows): MatrixCase {
  const statistic: DType = dtype === 'f64' ? 'f64' : 'f32';
  // Positive and negative terms cancel, so errors are relative to the sum of their magnitudes.
  const check = { ...close(statistic), absolute: (statistic === 'f64' ? 1e-12 : 2e-6) * columns };
  return opCase({
    op: 'LogitSums',
    dtype,
    title: `[${rows}, ${columns}] targets ${index} row stride ${layout.strides?.[0] ?? columns}`,
    build: (random) => {
      const logits = random.normal(rows * columns).map((x) => 3 * x);
      // As for masked tokens.
      for (let i = 2; i < logits.length; i += 5) if (i % columns > 0) logits[i] = -Infinity;
      const rowOf = (x: Float64Array, r: number) => x.subarray(r * columns, (r + 1) * columns);
      const lse = Array.from({ length: rows }, (_, r) =>
        Math.log(rowOf(logits, r).reduce((sum, x) => sum + Math.exp(x), 0)),
      );
      const target = Array.from({ length: rows }, (_, r) => (r === 1 ? IGNORE : r));
      const sum = (row: Float64Array, of: (x: number) => number) =>
        row.reduce((total, x) => total + of(x), 0);
      return {
        operands: {
          logits: input(dtype, [rows, columns], logits, layout),
          target: input(index, [rows], target),
          lse: input(statistic, [rows], lse),
          expected: output(statistic, [rows], { ...close(statistic), absolute: 1e-5 }, unaligned),
          total: output(statistic, [rows], check, unaligned),
        },
        args: { ignoreIndex: IGNORE },
        reference: (v) => {
          const sumRows = (of: (row: Float64Array, r: number) => number) =>
            Array.from(v.target!, (t, r) => (t === IGNORE ? 0 : of(rowOf(v.logits!, r), r)));
          return {
            expected: sumRows((row, r) =>
              sum(row, (x) => (x === -Infinity ? 0 : Math.exp(x - v.lse![r]!) * x)),
            ),
            total: sumRows((row) => sum(row, (x) => x)),
          };
        },
      };
    },
  });
}

export const cases: readonly MatrixCase[] = all.map(logitSums);

const LOGITS = { op: 'logit_sums' } as const;

export const mistakes: readonly Mistake[] = [
  {
    ...LOGITS,
    what: 'targets',
    code: 'DS_SHAPE',
    message: '[3] i64',
    run: (m) =>
      kernels.logitSums({
        logits: m([2, 5]),
        target: m([3], 'i64'),
        lse: m([2]),
        expected: m([2]),
        total: m([2]),
        ignoreIndex: IGNORE,
      }),
  },
  {
    ...LOGITS,
    what: 'sums of another dtype',
    code: 'DS_DTYPE',
    message: 'bf16',
    run: (m) =>
      kernels.logitSums({
        logits: m([2, 5], 'bf16'),
        target: m([2], 'i64'),
        lse: m([2]),
        expected: m([2]),
        total: m([2], 'bf16'),
        ignoreIndex: IGNORE,
      }),
  },
  {
    ...LOGITS,
    what: 'logits by columns',
    code: 'DS_SHAPE',
    message: '[N, V], got [2, 5, 1] f32',
    run: (m) =>
      kernels.logitSums({
        logits: m([2, 5, 1]),
        target: m([2], 'i64'),
        lse: m([2]),
        expected: m([2]),
        total: m([2]),
        ignoreIndex: IGNORE,
      }),
  },
];

// Cases of grouped matmuls: empty groups, rows without a token, and their gradients.
import type { DType } from '../../../lib/runtime/dtype.js';
import {
  close,
  inPlaceOperand,
  input,
  type MatrixCase,
  type Operand,
  opCase,
  output,
  type Values,
} from './harness.js';
import { floating } from './layouts.js';
import type { Random } from './numbers.js';

interface Grouping {
  title: string;
  /** Rows of each group. */
  counts: readonly number[];
  /** Rows after the last group. */
  behind: number;
  n: number;
  k: number;
}

const groupings: readonly Grouping[] = [
  { title: 'odd', counts: [3, 0, 5, 1], behind: 2, n: 7, k: 13 },
  { title: 'few rows', counts: [1, 0, 2, 9, 0, 20], behind: 0, n: 136, k: 72 },
  { title: 'many rows', counts: [0, 150, 3, 0, 70], behind: 5, n: 136, k: 200 },
  { title: 'ends near 64', counts: [0, 1, 63, 65, 129, 0, 64], behind: 3, n: 264, k: 72 },
  { title: 'all in one group', counts: [0, 300, 0], behind: 0, n: 72, k: 136 },
  { title: 'no rows', counts: [0, 0], behind: 0, n: 8, k: 8 },
  { title: 'nothing to sum', counts: [2, 1], behind: 0, n: 8, k: 0 },
  { title: 'more groups than a warp', counts: Array(40).fill(1), behind: 1, n: 16, k: 24 },
];

function offsetsOf(counts: readonly number[]): number[] {
  const offsets = [0];
  for (const count of counts) offsets.push(offsets.at(-1)! + count);
  return offsets;
}

interface Rows {
  count: number;
  /** Number of rows of x. */
  given: number;
  operands: Record<string, Operand | null>;
  /** The row of x for row r; -1 for a row of zeros. */
  source(values: Values, r: number): number;
}

function rowsOf(random: Random, { counts, behind }: Grouping, gather: boolean): Rows {
  const offsets = offsetsOf(counts);
  const count = offsets.at(-1)! + behind;
  const value = gather ? Math.ceil(count / 2) : count;
  const list = random.integers(count, -1, Math.max(1, value));
  return {
    count,
    given: value,
    operands: {
      offsets: input('i32', [offsets.length], offsets),
      rows: gather ? input('i32', [count], list) : null,
    },
    source: (v, r) => (gather ? v.rows![r]! : r),
  };
}

interface Form {
  gather: boolean;
  plain: boolean;
}

const forms: readonly Form[] = [
  { gather: false, plain: true },
  { gather: true, plain: false },
  { gather: false, plain: false },
];

const productOf = (dtype: DType, grouping: Grouping, { gather, plain }: Form): MatrixCase => {
  const { title, counts, n, k } = grouping;
  return opCase({
    op: 'GroupedMatmul',
    dtype,
    title: `${title}${gather ? ', gathered' : ''}${plain ? ', plain' : ''}`,
    build: (random) => {
      const { count, given, operands, source } = rowsOf(random, grouping, gather);
      const shape = [counts.length, ...(plain ? [k, n] : [n, k])];
      return {
        operands: {
          x: input(dtype, [given, k], random.normal(given * k)),
          weight: input(dtype, shape, random.normal(counts.length * n * k)),
          ...operands,
          out: output(dtype, [count, n], close(dtype, 2, 'tensor')),
        },
        args: { plain },
        reference: (v) => {
          const [x, weight] = [v.x!, v.weight!];
          const out = new Float64Array(count * n);
          const [column, step] = plain ? [1, n] : [k, 1];
          let r = 0;
          counts.forEach((rows, g) => {
            for (const end = r + rows; r < end; ++r) {
              const from = source(v, r);
              if (from < 0) continue;
              for (let c = 0; c < n; ++c) {
                const start = g * n * k + c * column;
                let sum = 0;
                for (let d = 0; d < k; ++d) sum += x[from * k + d]! * weight[start + d * step]!;
                out[r * n + c] = sum;
              }
            }
          });
          return { out };
        },
      };
    },
  });
};

const gradientOf = (dtype: DType, grouping: Grouping, gather: boolean): MatrixCase => {
  const { title, counts, n, k } = grouping;
  const accumulate = gather;
  return opCase({
    op: 'GroupedWeightGradient',
    dtype,
    title: `${title}${gather ? ', gathered, added' : ''}`,
    build: (random) => {
      const { count, given, operands, source } = rowsOf(random, grouping, gather);
      const check = close(dtype, 2, 'tensor');
      const shape = [counts.length, n, k];
      const size = counts.length * n * k;
      return {
        operands: {
          dout: input(dtype, [count, n], random.normal(count * n)),
          x: input(dtype, [given, k], random.normal(given * k)),
          ...operands,
          dweight: accumulate
            ? inPlaceOperand(input(dtype, shape, random.normal(size)), check)
            : output(dtype, shape, check),
        },
        args: { accumulate },
        reference: (v) => {
          const x = v.x!;
          const dweight = accumulate ? v.dweight!.slice() : new Float64Array(size);
          let r = 0;
          counts.forEach((rows, g) => {
            for (const end = r + rows; r < end; ++r) {
              const from = source(v, r);
              if (from < 0) continue;
              for (let c = 0; c < n; ++c) {
                const slope = v.dout![r * n + c]!;
                const at = (g * n + c) * k;
                for (let d = 0; d < k; ++d) dweight[at + d]! += slope * x[from * k + d]!;
              }
            }
          });
          return { dweight };
        },
      };
    },
  });
};

export const cases: MatrixCase[] = floating.flatMap((dtype) => [
  ...groupings.flatMap((grouping) => forms.map((form) => productOf(dtype, grouping, form))),
  ...groupings.flatMap((grouping) =>
    [false, true].map((gather) => gradientOf(dtype, grouping, gather)),
  ),
]);

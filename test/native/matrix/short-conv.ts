// Cases of ShortConv, its gradients and its steps against the formula: one to eight taps,
// documents, gaps, sequences that continue.
import type { DType } from '../../../lib/runtime/dtype.js';
import * as kernels from '../../../lib/runtime/kernels.generated.js';
import { shortConv, type Tensor, Tensor as Tensors } from '../../../lib/tensor/index.js';
import type { GradientCheck } from '../../autograd/check.js';
import { unary } from './functions.js';
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
import type { Mistake } from './mistake.js';

const { floor } = Math;
const { value: silu, slope } = unary.silu;

/** [B, T, C, K]. */
const sizes = [
  [1, 1, 1, 1],
  [2, 9, 5, 4],
  [1, 37, 33, 4],
  [1, 20, 130, 8],
  [3, 5, 2, 2],
  [1, 0, 4, 4],
  [2, 3, 0, 4],
] as const;

type Sizes = (typeof sizes)[number];
type Mode = 'plain' | 'gaps' | 'documents' | 'bias';
const modes: readonly Mode[] = ['plain', 'gaps', 'documents', 'bias'];

const documentsOf = ([b, t]: Sizes): Float64Array =>
  Float64Array.from({ length: b * t }, (_, i) => floor(i / 5) % 3);

/** Calls `each` with tap j of token t, and its token, for the taps in the token's document. */
function taps(
  [, t, , k]: Sizes,
  v: Values,
  row: number,
  each: (t: number, j: number, from: number) => void,
) {
  const documents = v.documents?.subarray(row * t, (row + 1) * t);
  for (let n = 0; n < t; ++n) {
    for (let j = 0; j < k; ++j) {
      const from = n - k + 1 + j;
      if (from < 0) continue;
      if (documents?.subarray(from, n + 1).some((value) => value !== documents[n])) continue;
      each(n, j, from);
    }
  }
}

function sums(z: Sizes, v: Values): Float64Array {
  const [b, t, c, k] = z;
  const out = Float64Array.from({ length: b * t * c }, (_, i) => v.bias?.[i % c] ?? 0);
  for (let row = 0; row < b; ++row) {
    taps(z, v, row, (n, j, from) => {
      for (let i = 0; i < c; ++i) {
        out[(row * t + n) * c + i]! += v.weight![i * k + j]! * v.x![(row * t + from) * c + i]!;
      }
    });
  }
  return out;
}

function gradients(z: Sizes, v: Values) {
  const [b, t, c, k] = z;
  const dsum = sums(z, v).map((x, i) => slope(x) * v.dout![i]!);
  const [dx, dweight] = [new Float64Array(b * t * c), new Float64Array(c * k)];
  const dbias = new Float64Array(c);
  dsum.forEach((grad, i) => {
    dbias[i % c]! += grad;
  });
  for (let row = 0; row < b; ++row) {
    taps(z, v, row, (n, j, from) => {
      for (let i = 0; i < c; ++i) {
        const grad = dsum[(row * t + n) * c + i]!;
        dx[(row * t + from) * c + i]! += grad * v.weight![i * k + j]!;
        dweight[i * k + j]! += grad * v.x![(row * t + from) * c + i]!;
      }
    });
  }
  return { dx, dweight, ...(v.bias && { dbias }) };
}

const fullMatrixCases = floating.flatMap((dtype) =>
  sizes.flatMap((z) =>
    modes.flatMap((mode) => {
      const [b, t, c, k] = z;
      const shape = [b, t, c];
      const layout = mode === 'gaps' && c > 0 ? paddedLayout(shape) : {};
      const check = close(dtype, 2, 'tensor');
      const statistic: DType = dtype === 'f64' ? 'f64' : 'f32';
      const inputsOf = (random: { normal(n: number): Float64Array }) => ({
        x: input(dtype, shape, random.normal(b * t * c), layout),
        weight: input(dtype, [c, k], random.normal(c * k), { lead: 1 }),
        bias: mode === 'bias' ? input(dtype, [c], random.normal(c), { lead: 2 }) : null,
        documents: mode === 'documents' ? input('i32', [b, t], documentsOf(z)) : null,
      });
      return [
        opCase({
          op: 'ShortConv',
          dtype,
          title: `${z.join(' ')} ${mode}`,
          build: (random) => ({
            operands: { ...inputsOf(random), out: output(dtype, shape, check) },
            reference: (v) => ({ out: sums(z, v).map(silu) }),
          }),
        }),
        opCase({
          op: 'ShortConvBackward',
          dtype,
          title: `${z.join(' ')} ${mode}`,
          build: (random) => ({
            operands: {
              ...inputsOf(random),
              dout: input(dtype, shape, random.normal(b * t * c), layout),
              dx: output(dtype, shape, check),
              dweight: output(statistic, [c, k], close(statistic, 4, 'tensor')),
              dbias: mode === 'bias' ? output(statistic, [c], close(statistic, 4, 'tensor')) : null,
            },
            reference: (v) => gradients(z, v),
          }),
        }),
      ];
    }),
  ),
);

/** Sequences: new tokens, all tokens, slot. */
const SEQUENCES = [
  [1, 5, 2],
  [1, 1, 0],
  [1, 0, -1],
  [6, 6, 4],
  [2, 9, 1],
  [2, 2, 3],
] as const;
const SLOTS = 6;
const ROWS = SEQUENCES.reduce((sum, [count]) => sum + count, 0);
const STARTS = [3];
for (const [count] of SEQUENCES) STARTS.push(STARTS.at(-1)! + count);

function steps(dtype: DType, c: number, k: number, mode: Exclude<Mode, 'documents'>): MatrixCase {
  const held = k - 1;
  return opCase({
    op: 'ShortConvStep',
    dtype,
    title: `${c} channels ${k} taps ${mode}`,
    build: (random) => ({
      operands: {
        x: input(
          dtype,
          [ROWS, c],
          random.normal(ROWS * c),
          mode === 'gaps' ? paddedLayout([ROWS, c]) : {},
        ),
        weight: input(dtype, [c, k], random.normal(c * k)),
        bias: mode === 'bias' ? input(dtype, [c], random.normal(c)) : null,
        starts: input('i32', [STARTS.length], STARTS),
        lengths: input(
          'i32',
          [SEQUENCES.length],
          SEQUENCES.map(([, all]) => all),
        ),
        slots: input(
          'i32',
          [SEQUENCES.length],
          SEQUENCES.map(([, , slot]) => slot),
        ),
        out: output(dtype, [ROWS, c], close(dtype, 2, 'tensor')),
        pool: inPlaceOperand(
          input(dtype, [SLOTS, held, c], random.normal(SLOTS * held * c)),
          exact,
        ),
      },
      reference(v) {
        const out = new Float64Array(ROWS * c);
        const pool = Float64Array.from(v.pool!);
        for (const [s, [count, all, slot]] of SEQUENCES.entries()) {
          const first = STARTS[s]! - 3;
          const rows = new Float64Array((held + count) * c);
          const from = slot * held * c;
          if (slot >= 0 && all > count) rows.set(pool.subarray(from, from + held * c));
          rows.set(v.x!.subarray(first * c, (first + count) * c), held * c);
          for (let t = 0; t < count; ++t) {
            for (let i = 0; i < c; ++i) {
              let sum = v.bias?.[i] ?? 0;
              for (let j = 0; j < k; ++j) sum += v.weight![i * k + j]! * rows[(t + j) * c + i]!;
              out[(first + t) * c + i] = silu(sum);
            }
          }
          if (slot >= 0) pool.set(rows.subarray(count * c), from);
        }
        return { out, pool };
      },
    }),
  });
}

export const cases: MatrixCase[] = [
  ...fullMatrixCases,
  ...floating.flatMap((dtype) => [
    steps(dtype, 5, 4, 'plain'),
    steps(dtype, 130, 4, 'gaps'),
    steps(dtype, 130, 4, 'bias'),
    steps(dtype, 3, 8, 'plain'),
    steps(dtype, 3, 1, 'plain'),
  ]),
];

export const mistakes: readonly Mistake[] = [
  {
    op: 'short_conv',
    what: 'weights',
    code: 'DS_SHAPE',
    message: '[4, 9] f32',
    run: (m) =>
      kernels.shortConv({
        x: m([1, 3, 4]),
        weight: m([4, 9]),
        bias: null,
        out: m([1, 3, 4]),
        documents: null,
      }),
  },
  {
    op: 'short_conv_backward',
    what: 'dtypes of dweight',
    code: 'DS_DTYPE',
    message: 'f16',
    run: (m) =>
      kernels.shortConvBackward({
        x: m([1, 3, 4]),
        weight: m([4, 2]),
        bias: null,
        dout: m([1, 3, 4]),
        dx: m([1, 3, 4]),
        dweight: m([4, 2], 'f16'),
        dbias: null,
        documents: null,
      }),
  },
  {
    op: 'short_conv_backward',
    what: 'a bias without its gradient',
    code: 'DS_SHAPE',
    message: 'a bias without dbias',
    run: (m) =>
      kernels.shortConvBackward({
        x: m([1, 3, 4]),
        weight: m([4, 2]),
        bias: m([4]),
        dout: m([1, 3, 4]),
        dx: m([1, 3, 4]),
        dweight: m([4, 2]),
        dbias: null,
        documents: null,
      }),
  },
  {
    op: 'short_conv',
    what: 'biases',
    code: 'DS_SHAPE',
    message: '[3]',
    run: (m) =>
      kernels.shortConv({
        x: m([1, 3, 4]),
        weight: m([4, 2]),
        bias: m([3]),
        out: m([1, 3, 4]),
        documents: null,
      }),
  },
  {
    op: 'short_conv_step',
    what: 'slots',
    code: 'DS_INDEX',
    message: 'the slots',
    cpuOnly: 'the GPU keeps no state of such a sequence',
    run: (m) => {
      const [starts, slots] = [m([2], 'i32'), m([1], 'i32')];
      starts.buffer.write(0, Int32Array.of(0, 2));
      slots.buffer.write(0, Int32Array.of(2));
      kernels.shortConvStep({
        x: m([2, 4]),
        weight: m([4, 3]),
        bias: null,
        starts,
        slots,
        lengths: m([1], 'i32'),
        out: m([2, 4]),
        pool: m([2, 2, 4]),
      });
    },
  },
];

export const checks: readonly GradientCheck[] = [
  {
    op: 'shortConv',
    inputs: [{ shape: [2, 6, 3] }, { shape: [3, 4] }],
    run: (x, w) => shortConv(x, w),
  },
  {
    op: 'shortConv',
    title: 'strided',
    inputs: [
      { shape: [1, 6, 3], strided: true },
      { shape: [3, 4], strided: true },
    ],
    run: (x, w) => shortConv(x, w),
  },
  {
    op: 'shortConv',
    title: 'bias',
    inputs: [{ shape: [2, 6, 3] }, { shape: [3, 4] }, { shape: [3] }],
    run: (x, w, bias) => shortConv(x, w, null, bias as Tensor),
  },
  {
    op: 'shortConv',
    title: 'documents',
    inputs: [{ shape: [1, 6, 3] }, { shape: [3, 2] }],
    run: (x, w) => {
      const { device } = x as Tensor;
      const documents = Tensors.from([0, 0, 1, 1, 1, 0], { dtype: 'i32', shape: [1, 6], device });
      return shortConv(x, w, documents);
    },
  },
];

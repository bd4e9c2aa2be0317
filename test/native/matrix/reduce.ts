// Reduce, ArgMax, SumOfSquares and GradientControl.
import type { DType } from '../../../lib/runtime/dtype.js';
import type { ReduceOp } from '../../../lib/runtime/kernels.generated.js';
import { contiguousStrides, numel } from '../../../lib/runtime/view.js';
import {
  close,
  exact,
  inPlaceOperand,
  input,
  type Layout,
  type MatrixCase,
  opCase,
  output,
} from './harness.js';
import {
  broadcast,
  floating,
  integers,
  numeric,
  oddSizes,
  paddedLayout,
  permutedLayout,
  reversedLayout,
  unaligned,
} from './layouts.js';
import type { Random } from './numbers.js';

const { max, sqrt } = Math;

const start: Record<ReduceOp, number> = {
  sum: 0,
  mean: 0,
  max: -Infinity,
  min: Infinity,
  prod: 1,
};
const join: Record<ReduceOp, (a: number, b: number) => number> = {
  sum: (a, b) => a + b,
  mean: (a, b) => a + b,
  max: Math.max,
  min: Math.min,
  prod: (a, b) => a * b,
};

function reduceTo(
  x: Float64Array,
  from: readonly number[],
  to: readonly number[],
  op: ReduceOp,
): Float64Array {
  const out = new Float64Array(numel(to)).fill(start[op]);
  const joined = join[op];
  // Reduced dims do not move the position in `out`.
  const strides = contiguousStrides(to).map((stride, d) => (to[d] === 1 ? 0 : stride));
  const index = from.map(() => 0);
  let target = 0;
  for (let i = 0; i < x.length; ++i) {
    out[target] = joined(out[target]!, x[i]!);
    for (let d = from.length - 1; d >= 0; --d) {
      target += strides[d]!;
      if (++index[d]! < from[d]!) break;
      target -= from[d]! * strides[d]!;
      index[d] = 0;
    }
  }
  return op === 'mean' ? out.map((sum) => sum / (numel(from) / numel(to))) : out;
}

/** Numbers around 1 with either sign, with products in range; a few integers are 2. */
const factors = (random: Random, n: number, isFloat: boolean): Float64Array =>
  isFloat
    ? random.uniform(n, 0.97, 1.03).map((x) => (random.unit() < 0.2 ? -x : x))
    : new Float64Array(n).map((_, i) => (i < 5 ? 2 : 1));

interface Reduction {
  from: readonly number[];
  to: readonly number[];
  layout?: Layout;
  outLayout?: Layout;
}

const reductions: readonly Reduction[] = [
  ...oddSizes.flatMap((n) => [
    { from: [n], to: [1], layout: unaligned },
    { from: [17, n], to: [17, 1] },
    { from: [33, n], to: [1, n], outLayout: unaligned },
  ]),
  { from: [0, 5], to: [1, 5] },
  { from: [5, 0], to: [1, 1] },
  { from: [], to: [] },
  { from: [3, 5], to: [3, 5] },
  { from: [129, 65], to: [1, 65], layout: paddedLayout([129, 65]) },
  { from: [129, 65], to: [1, 65], layout: reversedLayout([129, 65]) },
  { from: [129, 65], to: [129, 1], layout: reversedLayout([129, 65]) },
  { from: [5, 17, 33], to: [1, 17, 1] },
  { from: [5, 17, 33], to: [5, 1, 33] },
  { from: [5, 17, 33], to: [1, 1, 1], layout: permutedLayout([5, 17, 33], [1, 2, 0]) },
  { from: [5, 17, 33], to: [1, 17, 33], layout: broadcast([5, 17, 33], [1]) },
  {
    from: [2, 3, 4, 5, 6, 7],
    to: [1, 3, 1, 5, 1, 7],
    layout: permutedLayout([2, 3, 4, 5, 6, 7], [4, 0, 2, 5, 1, 3]),
  },
  { from: [2, 3, 4, 5, 6, 7], to: [2, 1, 4, 1, 6, 1] },
  { from: [4099, 3], to: [1, 3] },
  { from: [70_001], to: [1] },
];

/** Many dense rows, like bias gradients: on a GPU, special kernels sum 16-bit rows. */
const biasGradients: readonly Reduction[] = [
  { from: [256, 8], to: [1, 8] },
  { from: [523, 264], to: [1, 264] },
  { from: [5, 67, 520], to: [1, 1, 520], outLayout: unaligned },
  { from: [300, 72], to: [1, 72], layout: paddedLayout([300, 72], 8, 16) },
  { from: [300, 72], to: [1, 72], layout: unaligned },
];

function reduction(dtype: DType, op: ReduceOp, r: Reduction, accumulate: boolean): MatrixCase {
  const isFloat = floating.includes(dtype);
  const selects = op === 'max' || op === 'min';
  const terms = max(1, numel(r.from) / max(1, numel(r.to)));
  return opCase({
    op: 'Reduce',
    dtype,
    title: `${op} [${r.from}] to [${r.to}] at ${r.layout?.lead ?? 16}${r.layout?.strides ? ` strides ${r.layout.strides}` : ''}${accumulate ? ' accumulates' : ''}`,
    build(random) {
      const values =
        op === 'prod'
          ? factors(random, numel(r.from), isFloat)
          : isFloat
            ? random.normal(numel(r.from))
            : random.integers(numel(r.from), 0, dtype === 'u8' ? 3 : 99);
      const old = isFloat ? random.normal(numel(r.to)) : random.integers(numel(r.to), 0, 20);
      const check =
        !isFloat || (selects && !accumulate)
          ? exact
          : {
              ...close(dtype, 1, 'tensor'),
              absolute: (dtype === 'f64' ? 1e-15 : 1e-6) * sqrt(terms),
            };
      return {
        operands: {
          in: input(dtype, r.from, values, r.layout),
          out: accumulate
            ? inPlaceOperand(input(dtype, r.to, old, r.outLayout), check)
            : output(dtype, r.to, check, r.outLayout),
        },
        args: { op, accumulate },
        reference(v) {
          const result = reduceTo(v.in!, r.from, r.to, op);
          return { out: result.map((x, i) => x + (accumulate ? v.out![i]! : 0)) };
        },
      };
    },
  });
}

function reduces(): MatrixCase[] {
  const cases: MatrixCase[] = floating.flatMap((dtype) =>
    biasGradients.flatMap((r) => [
      reduction(dtype, 'sum', r, false),
      reduction(dtype, 'sum', r, true),
    ]),
  );
  for (const dtype of numeric) {
    for (const op of Object.keys(start) as ReduceOp[]) {
      const ordered = op === 'max' || op === 'min';
      if (op === 'mean' && integers.includes(dtype)) continue;
      for (const r of reductions) {
        if (numel(r.from) === 0 && ordered && numel(r.to) > 0) continue;
        if (dtype === 'u8' && numel(r.from) / max(1, numel(r.to)) > 64 && !ordered) continue;
        cases.push(reduction(dtype, op, r, false));
        if (op === 'sum' || r.from.length === 3) cases.push(reduction(dtype, op, r, true));
      }
    }
  }
  return cases;
}

/** One special value among ordinary ones, in rows and in columns. */
function nonFinite(): MatrixCase[] {
  const shape = [33, 65];
  return floating.flatMap((dtype) =>
    (Object.keys(start) as ReduceOp[]).flatMap((op) =>
      [Number.NaN, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY].flatMap((special) =>
        [
          [33, 1],
          [1, 65],
          [1, 1],
        ].map((to) =>
          opCase({
            op: 'Reduce',
            dtype,
            title: `${op} [33,65] to [${to}] with ${special}`,
            build(random) {
              // A product of many small numbers may or may not underflow, depending on the order; 0
              // times infinity is NaN.
              const n = numel(shape);
              const values = op === 'prod' ? factors(random, n, true) : random.normal(n);
              values[7 * 65 + 40] = special;
              return {
                operands: {
                  in: input(dtype, shape, values),
                  out: output(
                    dtype,
                    to,
                    op === 'max' || op === 'min'
                      ? exact
                      : { ...close(dtype, 1, 'tensor'), absolute: 1e-5 },
                  ),
                },
                args: { op, accumulate: false },
                reference: (v) => ({ out: reduceTo(v.in!, shape, to, op) }),
              };
            },
          }),
        ),
      ),
    ),
  );
}

function argMaxOf(row: Float64Array): number {
  const nan = row.findIndex(Number.isNaN);
  return nan >= 0 ? nan : row.indexOf(row.reduce((a, b) => max(a, b)));
}

function argMaxes(): MatrixCase[] {
  const cases: MatrixCase[] = [];
  for (const dtype of numeric) {
    // The longest row is like that of a vocabulary; a GPU uses a block of threads per row.
    for (const columns of [...oddSizes.filter((n) => n > 0), 5003]) {
      for (const [title, layout] of [
        ['ties', undefined],
        ['ties padded', paddedLayout([17, columns])],
        ['ties reversed', reversedLayout([17, columns])],
        ['NaN', unaligned],
      ] as const) {
        if (title === 'NaN' && !floating.includes(dtype)) continue;
        cases.push(
          opCase({
            op: 'ArgMax',
            dtype,
            title: `[17,${columns}] ${title}`,
            build(random) {
              // Few distinct values, so that several maxima exist and the first one counts.
              const values = random.integers(17 * columns, 0, 40);
              if (title === 'NaN')
                for (let r = 0; r < 17; r += 3)
                  values[r * columns + random.integer(0, columns)] = Number.NaN;
              return {
                operands: {
                  in: input(dtype, [17, columns], values, layout),
                  out: output('i64', [17], exact, unaligned),
                },
                reference: (v) => ({
                  out: Array.from({ length: 17 }, (_, r) =>
                    argMaxOf(v.in!.subarray(r * columns, (r + 1) * columns)),
                  ),
                }),
              };
            },
          }),
        );
      }
    }
    cases.push(
      opCase({
        op: 'ArgMax',
        dtype,
        title: '[0,5]',
        build: () => ({
          operands: { in: input(dtype, [0, 5], []), out: output('i64', [0], exact) },
          reference: () => ({ out: [] }),
        }),
      }),
    );
  }
  return cases;
}

function sumsOfSquares(): MatrixCase[] {
  return floating.flatMap((dtype) =>
    [...oddSizes, 70_001, 200_003].flatMap((n) =>
      [0, Number.NaN, Number.POSITIVE_INFINITY]
        .filter((special) => special === 0 || n === 257 || n === 70_001)
        .map((special) =>
          opCase({
            op: 'SumOfSquares',
            dtype,
            title: `[${n}] special ${special}`,
            build(random) {
              const values = random.uniform(n);
              if (special !== 0) values[n >> 1] = special;
              return {
                operands: {
                  x: input(dtype, [n], values, n % 2 ? unaligned : {}),
                  out: output('f32', [1], close('f32', 0.02)),
                },
                reference: (v) => ({ out: [v.x!.reduce((sum, x) => sum + x * x, 0)] }),
              };
            },
          }),
        ),
    ),
  );
}

function gradientControls(): MatrixCase[] {
  const partials = [
    [],
    [0],
    [4, 5, 16],
    [1e-12],
    [1e30, 1e30],
    [Number.NaN, 1],
    [1, Number.POSITIVE_INFINITY],
    new Array<number>(1029).fill(0.25),
  ];
  // The gaps between rows hold NaN in the guard's bytes and are not part of the view.
  const layouts = (n: number): [readonly number[], Layout][] => [
    [[n], unaligned],
    ...(n % 3 === 0 ? [[[3, n / 3], paddedLayout([3, n / 3], 2)] as [number[], Layout]] : []),
  ];
  const shaped = partials.flatMap((sums) =>
    layouts(sums.length).map(([shape, layout]) => ({ sums, shape, layout })),
  );
  return shaped.flatMap(({ sums, shape, layout }, k) =>
    [0, 1, 1e6].flatMap((maxNorm) =>
      [1, 65536].flatMap((lossScale) =>
        [false, true].map((skipNonfinite) =>
          opCase({
            op: 'GradientControl',
            dtype: 'f32',
            title: `partials ${k} of [${shape}] max ${maxNorm} scale ${lossScale} ${skipNonfinite ? 'skips' : 'applies'}`,
            build: () => ({
              operands: {
                partials: input('f32', shape, sums, layout),
                control: output('f32', [4], close('f32', 0.1, 'element'), unaligned),
              },
              args: { lossScale, maxNorm, skipNonfinite },
              reference(v) {
                const sum = v.partials!.reduce((a, b) => a + b, 0);
                const finite = Number.isFinite(sum);
                const norm = sqrt(sum) / lossScale;
                const expected = (norm + 1e-6) / maxNorm;
                // With a NaN norm the factor is unspecified unless the update is skipped; the op
                // uses 1.
                const clip = maxNorm > 0 && expected > 1 ? expected : 1;
                return {
                  control: [
                    1 / (lossScale * clip),
                    finite || !skipNonfinite ? 1 : 0,
                    norm,
                    finite ? 1 : 0,
                  ],
                };
              },
            }),
          }),
        ),
      ),
    ),
  );
}

export const cases: MatrixCase[] = [
  ...reduces(),
  ...nonFinite(),
  ...argMaxes(),
  ...sumsOfSquares(),
  ...gradientControls(),
];

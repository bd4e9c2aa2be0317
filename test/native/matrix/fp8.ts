// Fp8Quantize and Fp8Matmul: both formats, every scaling, odd sizes, magnitudes of 0, infinity and
// NaN, and the scales and pads of partial groups.
import type { DType } from '../../../lib/runtime/dtype.js';
import * as kernels from '../../../lib/runtime/kernels.generated.js';
import {
  FORMATS,
  type Format,
  GRIDS,
  type Kind,
  quantizeGrid,
  roundUp,
  SCALINGS,
  type Scaling,
  scaleAt,
  scaleShape,
  valueOfCode,
} from '../../support/fp8-grid.js';
import { close, exact, inPlaceOperand, input, type MatrixCase, opCase, output } from './harness.js';
import { aligned, paddedLayout, unaligned } from './layouts.js';
import type { Make, Mistake } from './mistake.js';
import type { Random } from './numbers.js';

const { floor } = Math;
const narrow: readonly DType[] = ['f32', 'bf16', 'f16'];
type Fill = (random: Random, n: number) => Float64Array;
const normal: Fill = (random, n) => random.normal(n);
/** Values over the whole range of subnormal and normal codes. */
const wide: Fill = (random, n) => {
  const sizes = random.uniform(n, -24, 3);
  return random.normal(n).map((x, i) => x * 2 ** sizes[i]!);
};
const fills: Readonly<Record<string, Fill>> = {
  normal,
  wide,
  zeros: (_, n) => new Float64Array(n),
  gradients: (random, n) => random.normal(n).map((x) => x * 2 ** -24),
  tiny: (random, n) => random.normal(n).map((x) => x * 2 ** -60),
  'an infinity': (random, n) => random.normal(n).map((x, i) => (i === n >> 1 ? -Infinity : x)),
  'a NaN': (random, n) => random.normal(n).map((x, i) => (i === n >> 1 ? NaN : x)),
};

interface QuantizeCase extends Kind {
  dtype: DType;
  rows: number;
  columns: number;
  fill: string;
  gap?: number;
  only?: 'out' | 'transposed';
}

function quantizeCase(of: QuantizeCase): MatrixCase {
  const { dtype, rows, columns, fill, format, scaling, gap = 0, only } = of;
  const shape = [rows, columns];
  const [hasOut, hasTransposed] = [only !== 'transposed', only !== 'out'];
  const isOne = scaling === 'tensor';
  return opCase({
    op: 'Fp8Quantize',
    dtype,
    title: `${rows}x${columns}, ${format}, ${scaling}, ${fill}${only ? `, ${only} only` : ''}`,
    build: (random) => ({
      operands: {
        in: input(
          dtype,
          shape,
          fills[fill]!(random, rows * columns),
          gap ? paddedLayout(shape, gap, gap === 8 ? 16 : 5) : aligned,
        ),
        out: hasOut ? output('u8', [rows, roundUp(columns, 16)], exact) : null,
        transposed: hasTransposed ? output('u8', [columns, roundUp(rows, 16)], exact) : null,
        scale: isOne || hasOut ? output('f32', scaleShape(scaling, rows, columns), exact) : null,
        transposedScale:
          !isOne && hasTransposed ? output('f32', scaleShape(scaling, columns, rows), exact) : null,
      },
      args: { format, scaling },
      reference: (v) => {
        const at = (r: number, c: number): number => v.in![r * columns + c]!;
        const kind = { format, scaling };
        const straight = quantizeGrid(at, [rows, columns], kind);
        const flipped = quantizeGrid((r, c) => at(c, r), [columns, rows], kind);
        return {
          out: hasOut ? straight.codes : undefined,
          transposed: hasTransposed ? flipped.codes : undefined,
          scale: isOne || hasOut ? straight.scales : undefined,
          transposedScale: !isOne && hasTransposed ? flipped.scales : undefined,
        };
      },
    }),
  });
}

const kinds: readonly Kind[] = FORMATS.flatMap((format) =>
  SCALINGS.map((scaling) => ({ format, scaling })),
);
const shapes = [
  [1, 1],
  [3, 17],
  [16, 128],
  [129, 127],
  [200, 264],
  [257, 640],
] as const;

const quantize = kinds.flatMap((kind) => [
  ...narrow.flatMap((dtype) =>
    shapes.map(([rows, columns]) =>
      quantizeCase({ ...kind, dtype, rows, columns, fill: 'normal' }),
    ),
  ),
  ...Object.keys(fills).map((fill) =>
    quantizeCase({ ...kind, dtype: 'bf16', rows: 130, columns: 144, fill }),
  ),
  quantizeCase({ ...kind, dtype: 'f32', rows: 40, columns: 200, fill: 'wide' }),
  ...[3, 8].map((gap) =>
    quantizeCase({ ...kind, dtype: 'bf16', rows: 33, columns: 256, fill: 'normal', gap }),
  ),
  ...(['out', 'transposed'] as const).map((only) =>
    quantizeCase({ ...kind, dtype: 'bf16', rows: 48, columns: 144, fill: 'normal', only }),
  ),
]);

/** The scalings of the products that the recipes need, and sizes without an algorithm. */
const pairs: readonly (readonly [Scaling, Scaling])[] = [
  ['tensor', 'tensor'],
  ['row', 'row'],
  ['group', 'square'],
  ['group', 'group'],
];
const products = [
  { m: 1, n: 16, k: 16 },
  { m: 7, n: 33, k: 48 },
  { m: 64, n: 144, k: 272 },
  { m: 136, n: 48, k: 640 },
] as const;

interface Product {
  dtype: DType;
  m: number;
  n: number;
  k: number;
  scalings: readonly [Scaling, Scaling];
  formats: readonly [Format, Format];
  accumulate?: boolean;
  bias?: boolean;
  /** Lets the library sum in fewer bits. */
  fast?: boolean;
}

/** Codes that are finite, up to 1.75 * 16: sums stay in the range of f16. */
const codes = (random: Random, n: number, format: Format): Float64Array =>
  random
    .integers(n, 0, 256)
    .map((code) => (code & 128) + ((code % 128) % (GRIDS[format].bias * 4 + 12)));

/**
 * Hopper adds FP8 products with 14 bits: an H200 differs by 2e-4 of a row's largest value. A wrong
 * scale differs by more than a tenth.
 */
function closeSums(dtype: DType): ReturnType<typeof close> {
  const check = close(dtype, 4);
  return { ...check, tolerance: Math.max(check.tolerance, 2 ** -10) };
}

/** The values of the codes of a matrix, with their scales. */
function valuesOf(
  codes: Float64Array,
  scales: Float64Array,
  size: readonly [rows: number, columns: number],
  format: Format,
  scaling: Scaling,
): Float64Array {
  const [, columns] = size;
  return codes.map((code, i) => {
    const scale = scales[scaleAt(scaling, size, floor(i / columns), i % columns)]!;
    return valueOfCode(code, format) * scale;
  });
}

function productCase(of: Product): MatrixCase {
  const { dtype, m, n, k, scalings, formats } = of;
  const { accumulate = false, bias = false, fast = false } = of;
  const form = `${m}x${n}x${k}, ${formats.join(' by ')}, ${scalings.join(' by ')}`;
  const count = (shape: readonly number[]): number => shape.reduce((a, b) => a * b, 1);
  return opCase({
    op: 'Fp8Matmul',
    dtype,
    title: `${form}${accumulate ? ', added' : ''}${bias ? ', with a bias' : ''}${fast ? ', fast' : ''}`,
    build(random) {
      const [sa, sb] = [scaleShape(scalings[0], m, k), scaleShape(scalings[1], n, k)];
      const old = input(dtype, [m, n], random.normal(m * n), paddedLayout([m, n], 8, 16));
      const out = output(dtype, [m, n], closeSums(dtype), paddedLayout([m, n], 8, 16));
      return {
        operands: {
          a: input('u8', [m, k], codes(random, m * k, formats[0])),
          b: input('u8', [n, k], codes(random, n * k, formats[1])),
          aScale: input('f32', sa, random.uniform(count(sa), 0.1, 0.2)),
          bScale: input('f32', sb, random.uniform(count(sb), 0.1, 0.2)),
          bias: bias ? input(dtype, [n], random.normal(n), unaligned) : null,
          out: accumulate ? inPlaceOperand(old, closeSums(dtype)) : out,
        },
        args: {
          aFormat: formats[0],
          bFormat: formats[1],
          fast,
          accumulate,
          aScaling: scalings[0],
          bScaling: scalings[1],
        },
        reference: (v) => {
          const a = valuesOf(v.a!, v.aScale!, [m, k], formats[0], scalings[0]);
          const b = valuesOf(v.b!, v.bScale!, [n, k], formats[1], scalings[1]);
          const expected = Float64Array.from({ length: m * n }, (_, i) => {
            const [r, c] = [floor(i / n), i % n];
            let sum = (bias ? v.bias![c]! : 0) + (accumulate ? v.out![i]! : 0);
            for (let j = 0; j < k; ++j) sum += a[r * k + j]! * b[c * k + j]!;
            return sum;
          });
          return { out: expected };
        },
      };
    },
  });
}

const both = ['e4m3', 'e4m3'] as const;
const multiply = [
  ...pairs.flatMap((scalings) =>
    products.flatMap((size) =>
      narrow.map((dtype) => productCase({ dtype, ...size, scalings, formats: both })),
    ),
  ),
  ...pairs.flatMap((scalings) =>
    [{ accumulate: true }, { bias: true }, { fast: true }].map((more) =>
      productCase({ dtype: 'bf16', m: 24, n: 32, k: 160, scalings, formats: both, ...more }),
    ),
  ),
  ...narrow.flatMap((dtype) =>
    [['e5m2', 'e4m3'] as const, ['e4m3', 'e5m2'] as const, ['e5m2', 'e5m2'] as const].map(
      (formats) =>
        productCase({ dtype, m: 40, n: 64, k: 96, scalings: ['tensor', 'tensor'], formats }),
    ),
  ),
];

export const cases: readonly MatrixCase[] = [...quantize, ...multiply];
const quantizeArgs = (make: Make) =>
  ({
    in: make([4, 16]),
    out: make([4, 16], 'u8'),
    transposed: null,
    scale: make([1]),
    transposedScale: null,
    format: 'e4m3',
    scaling: 'tensor',
  }) as const;
const matmulArgs = (make: Make) =>
  ({
    a: make([4, 16], 'u8'),
    b: make([16, 16], 'u8'),
    aScale: make([1]),
    bScale: make([1]),
    bias: null,
    out: make([4, 16]),
    aFormat: 'e4m3',
    bFormat: 'e4m3',
    aScaling: 'tensor',
    bScaling: 'tensor',
    fast: false,
    accumulate: false,
  }) as const;

export const mistakes: readonly Mistake[] = [
  {
    op: 'fp8_quantize',
    what: 'dtypes',
    code: 'DS_DTYPE',
    message: 'f64',
    cpuOnly: 'f64 exists on the CPU only',
    run: (m) => kernels.fp8Quantize({ ...quantizeArgs(m), in: m([4, 16], 'f64') }),
  },
  {
    op: 'fp8_quantize',
    what: 'codes',
    code: 'DS_SHAPE',
    message: '[4, 17] u8',
    run: (m) => kernels.fp8Quantize({ ...quantizeArgs(m), out: m([4, 17], 'u8') }),
  },
  {
    op: 'fp8_quantize',
    what: 'scales',
    code: 'DS_SHAPE',
    message: 'scale [4]',
    run: (m) => kernels.fp8Quantize({ ...quantizeArgs(m), scaling: 'row' }),
  },
  {
    op: 'fp8_quantize',
    what: 'outputs',
    code: 'DS_ARGUMENT',
    message: 'codes, and scales for each of them',
    run: (m) => kernels.fp8Quantize({ ...quantizeArgs(m), out: null }),
  },
  {
    op: 'fp8_quantize',
    what: 'strides',
    code: 'DS_SHAPE',
    message: '[4, 16] f32 with strides [1, 4]',
    run: (m) => kernels.fp8Quantize({ ...quantizeArgs(m), in: m([4, 16], 'f32', [1, 4]) }),
  },
  {
    op: 'fp8_matmul',
    what: 'inner sizes',
    code: 'DS_SHAPE',
    message: 'a multiple of 16',
    run: (m) => kernels.fp8Matmul({ ...matmulArgs(m), a: m([4, 8], 'u8'), b: m([16, 8], 'u8') }),
  },
  {
    op: 'fp8_matmul',
    what: 'scalings',
    code: 'DS_ARGUMENT',
    message: 'one scaling of both operands',
    run: (m) => kernels.fp8Matmul({ ...matmulArgs(m), aScaling: 'row', aScale: m([4]) }),
  },
  {
    op: 'fp8_matmul',
    what: 'a bias with accumulate',
    code: 'DS_ARGUMENT',
    message: 'no bias together with accumulate',
    run: (m) => kernels.fp8Matmul({ ...matmulArgs(m), bias: m([16]), accumulate: true }),
  },
  {
    op: 'fp8_matmul',
    what: 'dtypes of codes',
    code: 'DS_DTYPE',
    message: 'bf16',
    run: (m) => kernels.fp8Matmul({ ...matmulArgs(m), b: m([16, 16], 'bf16') }),
  },
];

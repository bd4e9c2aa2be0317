// Scan and CumprodBackward: running sums and products, both ways, along every dim.
import type { DType } from '../../../lib/runtime/dtype.js';
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
  aligned,
  broadcast,
  floating,
  oddSizes,
  paddedLayout,
  permutedLayout,
  reversedLayout,
  sparse,
  unaligned,
} from './layouts.js';
import type { Random } from './numbers.js';

interface Setting {
  shape: readonly number[];
  dim: number;
  in?: Layout;
  out?: Layout;
}

const six = [2, 3, 2, 5, 2, 3];
const settings: readonly Setting[] = [
  ...oddSizes.map((n) => ({ shape: [n], dim: 0, in: unaligned })),
  { shape: [17, 33], dim: 1, in: paddedLayout([17, 33]), out: sparse([17, 33]) },
  { shape: [17, 33], dim: 0, out: unaligned },
  { shape: [33, 17], dim: 0, in: reversedLayout([33, 17]) },
  { shape: [300, 5], dim: 0, in: aligned, out: reversedLayout([300, 5]) },
  { shape: [5, 67, 9], dim: 1, in: permutedLayout([5, 67, 9], [2, 0, 1]) },
  { shape: [5, 67, 9], dim: 1, in: broadcast([5, 67, 9], [2]) },
  { shape: six, dim: 3, in: permutedLayout(six, [5, 4, 3, 2, 1, 0]) },
  { shape: [3, 0, 5], dim: 2 },
  { shape: [3, 0, 5], dim: 1 },
];

/** Lines that a GPU cuts into parts. */
const long: readonly Setting[] = [
  { shape: [2, 9001], dim: 1, in: unaligned },
  { shape: [4099, 3], dim: 0 },
];

/** fold(total, x) along `dim`, from the end with `reverse`. */
function foldAlong(
  x: Float64Array,
  { shape, dim }: Setting,
  reverse: boolean,
  fold: (total: number, x: number) => number,
): Float64Array {
  const out = x.slice();
  const step = contiguousStrides(shape)[dim]!;
  const n = shape[dim]!;
  const place = (i: number): number => Math.floor(i / step) % n;
  for (let k = 0; k < x.length; ++k) {
    const i = reverse ? x.length - 1 - k : k;
    const isFirst = place(i) === (reverse ? n - 1 : 0);
    if (!isFirst) out[i] = fold(out[reverse ? i + step : i - step]!, x[i]!);
  }
  return out;
}

const sum = (total: number, x: number): number => total + x;
const product = (total: number, x: number): number => total * x;

/** Factors with products in range, some of them 0; sums of arbitrary values. */
function drawValues(random: Random, dtype: DType, op: 'sum' | 'prod', n: number): Float64Array {
  if (op === 'sum') return dtype === 'i64' ? random.integers(n, -99, 99) : random.normal(n);
  if (dtype === 'i64') return random.integers(n, 0, 2).map((x) => 2 * x - 1);
  return random.uniform(n, 0.97, 1.03);
}

const title = (s: Setting): string =>
  `[${s.shape}] dim ${s.dim}${s.in?.strides ? ` strides ${s.in.strides}` : ''}`;

function scans(): MatrixCase[] {
  return [...floating, 'i64' as const].flatMap((dtype) =>
    (['sum', 'prod'] as const).flatMap((op) =>
      [...settings, ...long].flatMap((setting) =>
        [false, true].flatMap((reverse) =>
          [false, true].map((accumulate) =>
            opCase({
              op: 'Scan',
              dtype,
              title: `${op} ${title(setting)}${reverse ? ' reversed' : ''}${accumulate ? ' accumulates' : ''}`,
              build(random) {
                const n = numel(setting.shape);
                const check = dtype === 'i64' ? exact : close(dtype, 2, 'tensor');
                const old = random.integers(n, -9, 9);
                return {
                  operands: {
                    in: input(dtype, setting.shape, drawValues(random, dtype, op, n), setting.in),
                    out: accumulate
                      ? inPlaceOperand(input(dtype, setting.shape, old, setting.out), check)
                      : output(dtype, setting.shape, check, setting.out),
                  },
                  args: { dim: setting.dim, op, reverse, accumulate },
                  reference(v) {
                    const result = foldAlong(v.in!, setting, reverse, op === 'sum' ? sum : product);
                    return { out: result.map((x, i) => x + (accumulate ? v.out![i]! : 0)) };
                  },
                };
              },
            }),
          ),
        ),
      ),
    ),
  );
}

/** CumprodBackward on one line by its definition, with every product computed separately. */
function slopes(x: number[], dout: number[]): number[] {
  return x.map((_, i) => {
    let without = 1;
    let slope = 0;
    for (let j = 0; j < x.length; ++j) {
      if (j !== i) without *= x[j]!;
      if (j >= i) slope += dout[j]! * without;
    }
    return slope;
  });
}

function cumprodSlope({ shape, dim }: Setting, x: Float64Array, dout: Float64Array): Float64Array {
  const out = new Float64Array(x.length);
  const step = contiguousStrides(shape)[dim]!;
  const n = shape[dim]!;
  for (let first = 0; first < x.length; ++first) {
    if (Math.floor(first / step) % n !== 0) continue;
    const at = Array.from({ length: n }, (_, k) => first + k * step);
    const line = slopes(
      at.map((i) => x[i]!),
      at.map((i) => dout[i]!),
    );
    for (const [k, i] of at.entries()) out[i] = line[k]!;
  }
  return out;
}

/** Every 29th factor is 0, so that lines have no zero, one, and several. */
function cumprodBackwards(): MatrixCase[] {
  const lines: readonly Setting[] = [
    ...settings.filter(({ shape }) => numel(shape) !== 1029),
    { shape: [700, 2], dim: 0 },
    { shape: [2, 4500], dim: 1 },
  ];
  return floating.flatMap((dtype) =>
    lines
      .filter(({ shape }) => numel(shape) < 9000 || dtype === 'f32')
      .flatMap((setting) =>
        [false, true].map((accumulate) =>
          opCase({
            op: 'CumprodBackward',
            dtype,
            title: `${title(setting)}${accumulate ? ' accumulates' : ''}`,
            build(random) {
              const n = numel(setting.shape);
              const x = random.uniform(n, 0.9, 1.1).map((value, i) => (i % 29 === 23 ? 0 : value));
              const check = close(dtype, 2, 'tensor');
              const { shape } = setting;
              return {
                operands: {
                  in: input(dtype, shape, x, setting.in),
                  dout: input(dtype, shape, random.normal(n), setting.out),
                  dx: accumulate
                    ? inPlaceOperand(input(dtype, shape, random.normal(n), setting.out), check)
                    : output(dtype, shape, check, setting.out),
                },
                args: { dim: setting.dim, accumulate },
                reference(v) {
                  const slope = cumprodSlope(setting, v.in!, v.dout!);
                  return { dx: slope.map((s, i) => s + (accumulate ? v.dx![i]! : 0)) };
                },
              };
            },
          }),
        ),
      ),
  );
}

export const cases: MatrixCase[] = [...scans(), ...cumprodBackwards()];

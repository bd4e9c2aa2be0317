// Scan: running sums, both ways, along every dim.
import type { DType } from '../../../lib/runtime/dtype.js';
import { contiguousStrides, numel } from '../../../lib/runtime/view.js';
import {
  close,
  exact,
  input,
  type Layout,
  type MatrixCase,
  opCase,
  output,
  updated,
} from './harness.js';
import {
  aligned,
  broadcast,
  floating,
  oddSizes,
  padded,
  permuted,
  reversed,
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
  { shape: [17, 33], dim: 1, in: padded([17, 33]), out: sparse([17, 33]) },
  { shape: [17, 33], dim: 0, out: unaligned },
  { shape: [33, 17], dim: 0, in: reversed([33, 17]) },
  { shape: [300, 5], dim: 0, in: aligned, out: reversed([300, 5]) },
  { shape: [5, 67, 9], dim: 1, in: permuted([5, 67, 9], [2, 0, 1]) },
  { shape: [5, 67, 9], dim: 1, in: broadcast([5, 67, 9], [2]) },
  { shape: six, dim: 3, in: permuted(six, [5, 4, 3, 2, 1, 0]) },
  { shape: [3, 0, 5], dim: 2 },
  { shape: [3, 0, 5], dim: 1 },
];

/** Lines that a GPU cuts into parts. */
const long: readonly Setting[] = [
  { shape: [2, 9001], dim: 1, in: unaligned },
  { shape: [4099, 3], dim: 0 },
];

/** Sums along `dim`, from the end with `reverse`. */
function summed(x: Float64Array, { shape, dim }: Setting, reverse: boolean): Float64Array {
  const out = x.slice();
  const step = contiguousStrides(shape)[dim]!;
  const n = shape[dim]!;
  const place = (i: number): number => Math.floor(i / step) % n;
  for (let k = 0; k < x.length; ++k) {
    const i = reverse ? x.length - 1 - k : k;
    const isFirst = place(i) === (reverse ? n - 1 : 0);
    if (!isFirst) out[i] = out[reverse ? i + step : i - step]! + x[i]!;
  }
  return out;
}

/** Integers whose sums are exact, or anything. */
const drawn = (random: Random, dtype: DType, n: number): Float64Array =>
  dtype === 'i64' ? random.integers(n, -99, 99) : random.normal(n);

const title = (s: Setting): string =>
  `[${s.shape}] dim ${s.dim}${s.in?.strides ? ` strides ${s.in.strides}` : ''}`;

function scans(): MatrixCase[] {
  return [...floating, 'i64' as const].flatMap((dtype) =>
    [...settings, ...long].flatMap((setting) =>
      [false, true].flatMap((reverse) =>
        [false, true].map((accumulate) =>
          opCase({
            op: 'Scan',
            dtype,
            title: `${title(setting)}${reverse ? ' reversed' : ''}${accumulate ? ' accumulates' : ''}`,
            build(random) {
              const n = numel(setting.shape);
              const check = dtype === 'i64' ? exact : close(dtype, 2, 'tensor');
              const old = random.integers(n, -9, 9);
              return {
                operands: {
                  in: input(dtype, setting.shape, drawn(random, dtype, n), setting.in),
                  out: accumulate
                    ? updated(input(dtype, setting.shape, old, setting.out), check)
                    : output(dtype, setting.shape, check, setting.out),
                },
                args: { dim: setting.dim, reverse, accumulate },
                reference(v) {
                  const result = summed(v.in!, setting, reverse);
                  return { out: result.map((x, i) => x + (accumulate ? v.out![i]! : 0)) };
                },
              };
            },
          }),
        ),
      ),
    ),
  );
}

export const cases: MatrixCase[] = scans();

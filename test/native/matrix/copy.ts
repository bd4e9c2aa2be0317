// Copy: every pair of dtypes, every kind of layout, and the corners of float-to-integer casts.
import type { DType } from '../../../lib/runtime/dtype.js';
import { numel } from '../../../lib/runtime/view.js';
import { exact, input, type Layout, type MatrixCase, opCase, output } from './harness.js';
import {
  aligned,
  broadcast,
  everyDType,
  floating,
  integers,
  oddSizes,
  paddedLayout,
  permutedLayout,
  reversedLayout,
  sparse,
  unaligned,
} from './layouts.js';
import { roundTo } from './numbers.js';

/** The result of converting `value` to `dtype`: truncated, saturated to 64 bits, then wrapped. */
export function convertValue(value: number, dtype: DType): number {
  if (dtype === 'bool') return value !== 0 ? 1 : 0;
  if (!integers.includes(dtype)) return roundTo(value, dtype);
  if (Number.isNaN(value)) return 0;
  const limit = 2n ** 63n;
  let wide =
    value >= 2 ** 63 ? limit - 1n : value < -(2 ** 63) ? -limit : BigInt(Math.trunc(value));
  if (dtype === 'i32') wide = BigInt.asIntN(32, wide);
  if (dtype === 'u8') wide = BigInt.asUintN(8, wide);
  return Number(wide);
}

interface Copying {
  from: DType;
  to: DType;
  shape: readonly number[];
  title: string;
  inLayout?: Layout;
  outLayout?: Layout;
  values?: readonly number[];
}

function copyCase({ from, to, shape, title, inLayout, outLayout, values }: Copying): MatrixCase {
  return opCase({
    op: 'Copy',
    dtype: to === 'f64' ? to : from,
    title: `to ${to} [${shape}] ${title}`,
    build(random) {
      const n = numel(shape);
      const signed = from !== 'u8' && to !== 'u8' && from !== 'bool';
      const data =
        values ??
        (floating.includes(from)
          ? random.uniform(n, signed ? -100 : 0, 100)
          : random.integers(n, signed ? -100 : 0, from === 'bool' ? 2 : 100));
      return {
        operands: {
          in: input(from, shape, data, inLayout),
          out: output(to, shape, exact, outLayout),
        },
        reference: (all) => ({ out: all.in!.map((x) => convertValue(x, to)) }),
      };
    },
  });
}

function pairs(): MatrixCase[] {
  return everyDType.flatMap((from) =>
    everyDType.flatMap((to) => [
      copyCase({
        from,
        to,
        shape: [257],
        title: 'unaligned',
        inLayout: unaligned,
        outLayout: aligned,
      }),
      copyCase({
        from,
        to,
        shape: [17, 33],
        title: 'padded',
        inLayout: paddedLayout([17, 33]),
        outLayout: reversedLayout([17, 33]),
      }),
      copyCase({ from, to, shape: [3, 40], title: 'broadcast', inLayout: broadcast([3, 40], [1]) }),
    ]),
  );
}

function layouts(): MatrixCase[] {
  const cases: MatrixCase[] = [];
  for (const dtype of ['u8', 'bf16', 'f32', 'i64'] as const) {
    const one = (shape: readonly number[], title: string, inLayout?: Layout, outLayout?: Layout) =>
      cases.push(copyCase({ from: dtype, to: dtype, shape, title, inLayout, outLayout }));
    for (const n of oddSizes) one([n], 'contiguous', unaligned, n % 2 ? unaligned : aligned);
    for (const shape of [
      [33, 65],
      [127, 129],
      [1, 257],
      [255, 3],
      [64, 64],
    ]) {
      one(shape, 'transposed', reversedLayout(shape), aligned);
      one(shape, 'transposed unaligned', reversedLayout(shape, 5), paddedLayout(shape));
    }
    one([5, 33, 17], 'batched transpose', permutedLayout([5, 33, 17], [0, 2, 1]), aligned);
    one([5, 33, 17], 'rotated', permutedLayout([5, 33, 17], [2, 0, 1]), unaligned);
    one(
      [2, 3, 4, 5, 6, 7],
      'six dims',
      permutedLayout([2, 3, 4, 5, 6, 7], [5, 1, 3, 0, 4, 2]),
      permutedLayout([2, 3, 4, 5, 6, 7], [2, 0, 5, 1, 3, 4]),
    );
    one([3, 17, 33], 'broadcast rows', broadcast([3, 17, 33], [0, 1]), unaligned);
    one([3, 17, 33], 'broadcast columns', broadcast([3, 17, 33], [2]), aligned);
    one([129], 'broadcast scalar', broadcast([129], [0], 5), unaligned);
    one([17, 33], 'every second', sparse([17, 33]), sparse([17, 33]));
    one([7, 0, 3], 'empty');
    one([], 'scalar', unaligned, unaligned);
  }
  return cases;
}

/** Values out of range of a narrower dtype. */
function corners(): MatrixCase[] {
  const values = [
    Number.NaN,
    Number.POSITIVE_INFINITY,
    Number.NEGATIVE_INFINITY,
    -0,
    0.5,
    -0.5,
    1.9999,
    -1.9999,
    255,
    256,
    300.7,
    -1,
    65504,
    65519,
    65520,
    3e9,
    -3e9,
    2 ** 31,
    -(2 ** 31),
    1e20,
    -1e20,
    1e-8,
    2 ** -24,
    2 ** -25,
    1e-40,
    3.4e38,
    1 + 2 ** -8,
    1 + 3 * 2 ** -8,
    1 + 2 ** -11,
    1 + 3 * 2 ** -11,
  ];
  const fullValues = [
    0,
    1,
    -1,
    127,
    128,
    255,
    256,
    257,
    2 ** 24 + 1,
    -(2 ** 24) - 3,
    2 ** 31 - 1,
    -(2 ** 31),
  ];
  return [
    ...floating.flatMap((from) =>
      everyDType.map((to) =>
        copyCase({ from, to, shape: [values.length], title: 'corners', values }),
      ),
    ),
    ...(['i32', 'i64'] as const).flatMap((from) =>
      everyDType.map((to) =>
        copyCase({ from, to, shape: [fullValues.length], title: 'corners', values: fullValues }),
      ),
    ),
  ];
}

export const cases: MatrixCase[] = [...pairs(), ...layouts(), ...corners()];

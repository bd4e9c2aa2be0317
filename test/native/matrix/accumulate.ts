// Cases of Accumulate: every dtype, odd sizes, layouts, and values that vanish in 16-bit sums.
import { numel } from '../../../lib/runtime/view.js';
import { exact, inPlaceOperand, input, type Layout, type MatrixCase, opCase } from './harness.js';
import {
  aligned,
  broadcast,
  oddSizes,
  paddedLayout,
  reversedLayout,
  sparse,
  unaligned,
} from './layouts.js';

interface Setting {
  title: string;
  shape: readonly number[];
  in?: Layout;
  out?: Layout;
}

const settings: readonly Setting[] = [
  ...oddSizes.map((n) => ({ title: 'unaligned', shape: [n], in: unaligned, out: aligned })),
  { title: 'aligned', shape: [4096], in: aligned, out: aligned },
  { title: 'unaligned sum', shape: [1029], in: aligned, out: unaligned },
  { title: 'empty', shape: [3, 0, 5] },
  { title: 'padded', shape: [17, 33], in: paddedLayout([17, 33]), out: reversedLayout([17, 33]) },
  { title: 'broadcast', shape: [17, 128], in: broadcast([17, 128], [0]), out: sparse([17, 128]) },
];

const narrow = ['f32', 'f16', 'bf16'] as const;

function sums(): MatrixCase[] {
  return narrow.flatMap((dtype) =>
    settings.map((setting) =>
      opCase({
        op: 'Accumulate',
        dtype,
        title: `[${setting.shape}] ${setting.title}`,
        build(random) {
          const n = numel(setting.shape);
          return {
            operands: {
              in: input(dtype, setting.shape, random.normal(n), setting.in),
              out: inPlaceOperand(
                input('f32', setting.shape, random.normal(n), setting.out),
                exact,
              ),
            },
            reference: (v) => ({ out: v.out!.map((sum, i) => sum + v.in![i]!) }),
          };
        },
      }),
    ),
  );
}

const { NaN: nan, POSITIVE_INFINITY: infinity } = Number;

/** Small terms of large sums, signed zeros, denormals, infinities and NaNs. */
function corners(): MatrixCase[] {
  const parts = [2 ** -12, -(2 ** -12), 2 ** -24, -0, -0, infinity, -infinity, nan, 1, 65504];
  const olds = [1, 1, 2 ** -140, 0, -0, 1, infinity, 1, nan, 3e38];
  return narrow.map((dtype) =>
    opCase({
      op: 'Accumulate',
      dtype,
      title: 'corners',
      build: () => ({
        operands: {
          in: input(dtype, [parts.length], parts),
          out: inPlaceOperand(input('f32', [olds.length], olds), exact),
        },
        reference: (v) => ({ out: v.out!.map((sum, i) => sum + v.in![i]!) }),
      }),
    }),
  );
}

export const cases: MatrixCase[] = [...sums(), ...corners()];

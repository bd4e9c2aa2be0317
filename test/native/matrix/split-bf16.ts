// Cases of SplitBf16: odd sizes, rows with gaps, values that bf16 rounds to infinity.
import * as kernels from '../../../lib/runtime/kernels.generated.js';
import { exact, input, type MatrixCase, opCase, output } from './harness.js';
import { paddedLayout } from './layouts.js';
import type { Mistake } from './mistake.js';
import { roundTo } from './numbers.js';

const sizes = [
  [1, 1],
  [7, 16],
  [33, 5],
  [129, 24],
  [0, 8],
  [3, 0],
] as const;

const split = (title: string, [rows, columns]: readonly [number, number], hasAgain: boolean) => {
  const shape = [rows, columns];
  return opCase({
    op: 'SplitBf16',
    dtype: 'f32',
    title: `[${shape}] ${title}`,
    build: (random) => {
      const values = random.normal(rows * columns);
      const extremes = [0, -0, 3.4e38, -3.4e38, 1e-39, Infinity, -Infinity, Number.NaN];
      for (const [i, x] of extremes.entries()) if (values.length > 20) values[i] = x;
      const layout = paddedLayout([rows, columns], 8, 16);
      return {
        operands: {
          in: input('f32', shape, values, paddedLayout([rows, columns], 3, 1)),
          high: output('bf16', shape, exact, layout),
          again: hasAgain ? output('bf16', shape, exact) : null,
          low: output('bf16', shape, exact, layout),
        },
        reference: (v) => {
          const high = v.in!.map((x) => roundTo(x, 'bf16'));
          const low = v.in!.map((x, i) =>
            Number.isFinite(high[i]!) ? roundTo(x - high[i]!, 'bf16') : 0,
          );
          return { high, low, ...(hasAgain && { again: high }) };
        },
      };
    },
  });
};

export const cases: MatrixCase[] = sizes.flatMap((size) => [
  split('two parts', size, false),
  split('high twice', size, true),
]);

export const mistakes: readonly Mistake[] = [
  {
    op: 'split_bf16',
    what: 'shapes',
    code: 'DS_SHAPE',
    message: '[2, 4] bf16',
    run: (m) =>
      kernels.splitBf16({
        in: m([2, 3]),
        high: m([2, 4], 'bf16'),
        again: null,
        low: m([2, 3], 'bf16'),
      }),
  },
  {
    op: 'split_bf16',
    what: 'dtypes',
    code: 'DS_DTYPE',
    message: 'f32',
    run: (m) =>
      kernels.splitBf16({ in: m([2, 3]), high: m([2, 3]), again: null, low: m([2, 3], 'bf16') }),
  },
];

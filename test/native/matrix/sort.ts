// Sort: whole rows and the first places of rows, short and long, with ties, NaN, infinities and
// both zeros.
import type { DType } from '../../../lib/runtime/dtype.js';
import { numel } from '../../../lib/runtime/view.js';
import { exact, input, type Layout, type MatrixCase, opCase, output } from './harness.js';
import {
  everyDType,
  floating,
  oddSizes,
  paddedLayout,
  permutedLayout,
  reversedLayout,
  unaligned,
} from './layouts.js';
import type { Random } from './numbers.js';

const { NaN: nan, POSITIVE_INFINITY: infinity } = Number;

interface Setting {
  shape: readonly number[];
  places: number;
  layout?: Layout;
}

/** Of a GPU's three ways: networks, selection of few places, and the sort of long rows. */
const settings: readonly Setting[] = [
  ...oddSizes.filter((n) => n > 0).map((n) => ({ shape: [5, n], places: n, layout: unaligned })),
  { shape: [300, 3], places: 2 },
  { shape: [17, 33], places: 5, layout: reversedLayout([17, 33]) },
  { shape: [3, 5, 129], places: 129, layout: permutedLayout([3, 5, 129], [2, 0, 1]) },
  { shape: [2049], places: 1 },
  { shape: [3, 2500], places: 7, layout: paddedLayout([3, 2500]) },
  { shape: [3, 2500], places: 1024 },
  { shape: [3, 2500], places: 1025 },
  { shape: [3, 2500], places: 2500, layout: reversedLayout([3, 2500]) },
  { shape: [1, 5001], places: 5001 },
  { shape: [0, 5], places: 5 },
  { shape: [4, 5], places: 0 },
];

const kinds = ['few values', 'many values', 'one value'] as const;

function drawValues(
  random: Random,
  dtype: DType,
  kind: (typeof kinds)[number],
  n: number,
): Float64Array {
  if (kind === 'one value') return new Float64Array(n).fill(1);
  if (dtype === 'bool') return random.integers(n, 0, 2);
  if (dtype === 'u8') return random.integers(n, 0, 256);
  if (floating.includes(dtype)) {
    const values = kind === 'few values' ? random.integers(n, -9, 9) : random.normal(n);
    const special = [nan, infinity, -infinity, -0, 0, 2 ** -14, -(2 ** -24)];
    return values.map((x) => (random.unit() < 0.05 ? special[random.integer(0, 7)]! : x));
  }
  const limit = kind === 'few values' ? 9 : dtype === 'i64' ? 2 ** 40 : 2 ** 31 - 1;
  return random.integers(n, -limit, limit);
}

/** Before 0 where a comes first: NaN is the greatest, and 0 is -0. */
function compare(a: number, b: number): number {
  if (a === b || (Number.isNaN(a) && Number.isNaN(b))) return 0;
  return Number.isNaN(b) || a < b ? -1 : 1;
}

function sortAlong(x: Float64Array, { shape, places }: Setting, descending: boolean) {
  const columns = shape.at(-1)!;
  const index: number[] = [];
  const values: number[] = [];
  for (let row = 0; row < x.length; row += columns) {
    const order = Array.from({ length: columns }, (_, i) => i);
    const sign = descending ? -1 : 1;
    order.sort((i, j) => sign * compare(x[row + i]!, x[row + j]!) || i - j);
    for (const i of order.slice(0, places)) {
      index.push(i);
      values.push(x[row + i]!);
    }
  }
  return { index, values };
}

function sorts(dtype: DType, setting: Setting, kind: (typeof kinds)[number], descending: boolean) {
  const { shape, places, layout } = setting;
  const to = [...shape.slice(0, -1), places];
  const wantsValues = places !== 5;
  return opCase({
    op: 'Sort',
    dtype,
    title: `${places} of [${shape}], ${kind}${descending ? ', descending' : ''}${layout?.strides ? ` strides ${layout.strides}` : ''}`,
    build: (random) => ({
      operands: {
        in: input(dtype, shape, drawValues(random, dtype, kind, numel(shape)), layout),
        values: wantsValues ? output(dtype, to, exact, unaligned) : null,
        index: output('i64', to, exact, unaligned),
      },
      args: { descending },
      reference(v) {
        const { index, values } = sortAlong(v.in!, setting, descending);
        return wantsValues ? { index, values } : { index };
      },
    }),
  });
}

export const cases: MatrixCase[] = everyDType.flatMap((dtype) =>
  settings.flatMap((setting, i) =>
    kinds
      .filter((kind) => kind !== 'one value' || i % 4 === 0)
      .flatMap((kind) =>
        [false, true].map((descending) => sorts(dtype, setting, kind, descending)),
      ),
  ),
);

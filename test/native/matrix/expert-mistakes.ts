// Wrong calls of the ops of experts, and the error that each must give.
import * as kernels from '../../../lib/runtime/kernels.generated.js';
import type { View } from '../../../lib/runtime/view.js';
import type { Make, Mistake } from './mistake.js';

type Wrong = (make: Make) => Record<string, View | null>;
type Row = [what: string, code: Mistake['code'], message: string, wrong: Wrong];
type Call = (make: Make, wrong: Record<string, View | null>) => void;

const rowsFor = (op: string, call: Call, rows: readonly Row[]): Mistake[] =>
  rows.map(([what, code, message, wrong]) => {
    return { op, what, code, message, run: (make: Make) => call(make, wrong(make)) };
  });

const route: Call = (m, wrong) =>
  kernels.routeTopK({
    logits: m([3, 4]),
    ids: m([3, 2], 'i32'),
    weights: m([3, 2]),
    normalize: true,
    x: null,
    weight: null,
    bias: null,
    ...wrong,
  });

const routeTokens: Call = (m, wrong) =>
  kernels.routeTopK({
    logits: m([3, 4]),
    x: m([3, 8]),
    weight: m([4, 8]),
    bias: m([4]),
    ids: m([3, 2], 'i32'),
    weights: m([3, 2]),
    normalize: true,
    ...wrong,
  });

const routeBackward: Call = (m, wrong) =>
  kernels.routeTopKBackward({
    logits: m([3, 4]),
    ids: m([3, 2], 'i32'),
    dweights: m([3, 2]),
    dlogits: m([3, 4]),
    normalize: true,
    accumulate: false,
    ...wrong,
  });

const group: Call = (m, wrong) =>
  kernels.groupRows({
    ids: m([3, 2], 'i32'),
    offsets: m([5], 'i32'),
    rows: m([6], 'i32'),
    places: m([3, 2], 'i32'),
    first: 0,
    ...wrong,
  });

const combine: Call = (m, wrong) =>
  kernels.combineRows({
    y: m([6, 4]),
    places: m([3, 2], 'i32'),
    weights: m([3, 2]),
    out: m([3, 4]),
    accumulate: false,
    ...wrong,
  });

const combineBackward: Call = (m, wrong) =>
  kernels.combineRowsBackward({
    y: m([6, 4]),
    places: m([3, 2], 'i32'),
    weights: m([3, 2]),
    dout: m([3, 4]),
    dy: m([6, 4]),
    dweights: m([3, 2]),
    ...wrong,
  });

const product: Call = (m, wrong) =>
  kernels.groupedMatmul({
    x: m([6, 4]),
    rows: null,
    weight: m([2, 5, 4]),
    offsets: m([3], 'i32'),
    out: m([6, 5]),
    plain: false,
    ...wrong,
  });

const gradient: Call = (m, wrong) =>
  kernels.groupedWeightGradient({
    dout: m([6, 5]),
    x: m([6, 4]),
    rows: null,
    offsets: m([3], 'i32'),
    dweight: m([2, 5, 4]),
    accumulate: false,
    ...wrong,
  });

export const mistakes: readonly Mistake[] = [
  ...rowsFor('route_top_k', route, [
    ['dtype', 'DS_DTYPE', 'i32', (m) => ({ logits: m([3, 4], 'i32') })],
    ['number of experts', 'DS_SHAPE', '[3, 513]', (m) => ({ logits: m([3, 513]) })],
    ['strides of logits', 'DS_SHAPE', 'strides', (m) => ({ logits: m([3, 4], 'f32', [1, 3]) })],
    ['number of choices', 'DS_SHAPE', '[3, 5] i32', (m) => ({ ids: m([3, 5], 'i32') })],
    ['dtype of ids', 'DS_DTYPE', 'i64', (m) => ({ ids: m([3, 2], 'i64') })],
    ['dtype of weights', 'DS_DTYPE', 'f16', (m) => ({ weights: m([3, 2], 'f16') })],
  ]),
  ...rowsFor('route_top_k', routeTokens, [
    ['shape of weight', 'DS_SHAPE', '[4, 7] f32', (m) => ({ weight: m([4, 7]) })],
    ['no weight', 'DS_SHAPE', 'x, bias', () => ({ weight: null })],
    ['dtype of weight', 'DS_DTYPE', 'f16', (m) => ({ weight: m([4, 8], 'f16') })],
    ['dtype of x', 'DS_DTYPE', 'f16', (m) => ({ x: m([3, 8], 'f16') })],
    ['rows of x', 'DS_SHAPE', '[2, 8] f32', (m) => ({ x: m([2, 8]) })],
    ['shape of bias', 'DS_SHAPE', 'bias', (m) => ({ bias: m([5]) })],
  ]),
  ...rowsFor('route_top_k_backward', routeBackward, [
    ['shape of dlogits', 'DS_SHAPE', '[3, 5] f32', (m) => ({ dlogits: m([3, 5]) })],
    ['shape of dweights', 'DS_SHAPE', '[3, 1] f32', (m) => ({ dweights: m([3, 1]) })],
  ]),
  ...rowsFor('group_rows', group, [
    ['dtype of ids', 'DS_DTYPE', 'i64', (m) => ({ ids: m([3, 2], 'i64') })],
    ['shape of places', 'DS_SHAPE', '[2, 3] i32', (m) => ({ places: m([2, 3], 'i32') })],
    ['number of rows', 'DS_SHAPE', '[5] i32', (m) => ({ rows: m([5], 'i32') })],
    ['number of groups', 'DS_SHAPE', '[514] i32', (m) => ({ offsets: m([514], 'i32') })],
  ]),
  ...rowsFor('combine_rows', combine, [
    ['width', 'DS_SHAPE', '[3, 5] f32', (m) => ({ out: m([3, 5]) })],
    ['dtypes', 'DS_DTYPE', 'f16', (m) => ({ y: m([6, 4], 'f16') })],
    ['shape of weights', 'DS_SHAPE', '[3, 3] f32', (m) => ({ weights: m([3, 3]) })],
  ]),
  ...rowsFor('combine_rows_backward', combineBackward, [
    ['shape of dy', 'DS_SHAPE', '[5, 4] f32', (m) => ({ dy: m([5, 4]) })],
    ['dtype of dweights', 'DS_DTYPE', 'f16', (m) => ({ dweights: m([3, 2], 'f16') })],
  ]),
  ...rowsFor('grouped_matmul', product, [
    ['shape of weight', 'DS_SHAPE', '[2, 4, 5] f32', (m) => ({ weight: m([2, 4, 5]) })],
    ['dtype of weight', 'DS_DTYPE', 'f16', (m) => ({ weight: m([2, 5, 4], 'f16') })],
    ['number of rows', 'DS_SHAPE', '[5, 5] f32', (m) => ({ out: m([5, 5]) })],
    ['length of rows', 'DS_SHAPE', '[5] i32', (m) => ({ rows: m([5], 'i32') })],
    ['dtype of offsets', 'DS_DTYPE', 'i64', (m) => ({ offsets: m([3], 'i64') })],
  ]),
  ...rowsFor('grouped_weight_gradient', gradient, [
    ['shape of dweight', 'DS_SHAPE', '[2, 4, 5] f32', (m) => ({ dweight: m([2, 4, 5]) })],
    ['dtype of x', 'DS_DTYPE', 'f16', (m) => ({ x: m([6, 4], 'f16') })],
  ]),
];

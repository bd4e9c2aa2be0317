// Gradients of running sums and products, of sorted elements, and of scatters.
import * as ops from '../../lib/tensor/index.js';
import { type GradientCheck, gradientCases, type Input, indices } from './check.js';

const x = (...shape: number[]): Input[] => [{ shape }];
const stridedInput = (...shape: number[]): Input[] => [{ shape, strided: true }];
const shapes = (...list: number[][]): Input[] => list.map((shape) => ({ shape }));

/**
 * `a` with zeros at the flat positions `at`. The finite differences at zeros themselves are in
 * test/native/matrix.
 */
function withZeros(a: ops.Tensor, at: readonly number[]): ops.Tensor {
  const factors = Array.from({ length: a.numel }, (_, i) => (at.includes(i) ? 0 : 1));
  const { shape, device, dtype } = a;
  return a.mul(ops.Tensor.from(factors, { shape, device, dtype }));
}

const running: GradientCheck[] = [
  { op: 'cumsum', inputs: x(3, 7), run: (a) => ops.cumsum(a, 1).square() },
  {
    op: 'cumsum',
    title: 'first dim, strided',
    inputs: stridedInput(2, 5, 3),
    run: (a) => a.cumsum(0).exp(),
  },
  { op: 'cumsum', title: 'empty', inputs: x(0, 3), run: (a) => a.cumsum(0) },
  { op: 'cumprod', inputs: x(3, 7), run: (a) => ops.cumprod(a, -1).sin() },
  {
    op: 'cumprod',
    title: 'first dim, strided',
    inputs: stridedInput(5, 3),
    run: (a) => a.cumprod(0).exp(),
  },
  {
    op: 'cumprod',
    title: 'behind zeros',
    inputs: x(3, 5),
    run: (a) => withZeros(a, [2, 7, 9]).cumprod(1).add(1).square(),
  },
  { op: 'prod', title: 'of nothing', inputs: x(0, 3), run: (a) => a.prod(0) },
  {
    op: 'prod',
    title: 'of two dims, strided, with a zero',
    inputs: stridedInput(2, 3, 4),
    run: (a) => withZeros(a, [3]).prod([0, 2]).add(a.sum()).square(),
  },
];

const order: GradientCheck[] = [
  { op: 'sort', inputs: x(3, 7), run: (a) => ops.sort(a).values.square().cumsum(1) },
  {
    op: 'sort',
    title: 'first dim, descending, strided',
    inputs: stridedInput(5, 3),
    run: (a) => a.sort({ dim: 0, descending: true }).values.cumsum(0).exp(),
  },
  { op: 'topk', inputs: x(3, 7), run: (a) => ops.topk(a, 3).values.cumsum(1).exp() },
  {
    op: 'topk',
    title: 'smallest of the first dim',
    inputs: x(7, 3),
    run: (a) => a.topk(2, { dim: 0, largest: false }).values.cumsum(0).exp(),
  },
  { op: 'topk', title: 'none', inputs: x(3, 4), run: (a) => a.topk(0).values },
];

const places: GradientCheck[] = [
  {
    op: 'takeRows',
    inputs: x(5, 3),
    run: (a) => ops.takeRows(a, indices([4, 0, 2], [3], a)).square(),
  },
  {
    op: 'replaceRows',
    inputs: shapes([5, 3], [2, 3]),
    run: (a, b) => ops.replaceRows(a, indices([3, 1], [2], a), b).exp(),
  },
  {
    op: 'gather',
    title: 'of a part',
    inputs: x(4, 5),
    run: (a) => ops.gather(a, 1, indices([4, 0, 0, 2, 1, 1], [2, 3], a)).square(),
  },
  {
    op: 'gather',
    title: 'many of one place',
    inputs: x(3, 2),
    run: (a) => ops.gather(a, 0, indices(new Array(200).fill(1), [100, 2], a)).square(),
  },
  {
    op: 'scatter',
    inputs: shapes([3, 5], [3, 4]),
    run: (a, b) => a.scatter(1, indices([4, 0, 1, 2, 0, 1, 2, 3, 3, 2, 1, 0], [3, 4], a), b).exp(),
  },
  {
    op: 'scatter',
    title: 'several at a place, a larger source, a part of the lines',
    inputs: [...stridedInput(4, 5), ...x(5, 6)],
    run: (a, b) => a.scatter(1, indices([2, 2, 2, 0, 4, 0], [2, 3], a), b).exp(),
  },
  {
    op: 'scatter',
    title: 'a number',
    inputs: x(3, 5),
    run: (a) => a.scatter(0, indices([2, 0, 1, 1, 2], [1, 5], a), 0.5).square(),
  },
  {
    op: 'scatterAdd',
    inputs: shapes([3, 5], [3, 4]),
    run: (a, b) =>
      a.scatterAdd(1, indices([4, 0, 0, 0, 0, 1, 2, 3, 3, 3, 1, 1], [3, 4], a), b).exp(),
  },
  {
    op: 'scatterAdd',
    title: 'first dim, strided, a larger source',
    inputs: [...stridedInput(5, 3), ...stridedInput(6, 4)],
    run: (a, b) => a.scatterAdd(0, indices([1, 1, 4, 2, 1, 0], [2, 3], a), b).square(),
  },
];

const paddings: GradientCheck[] = [
  {
    op: 'pad',
    title: 'reflect',
    inputs: x(3, 5),
    run: (a) => a.pad([4, 2, 1, 2], 'reflect').exp(),
  },
  {
    op: 'pad',
    title: 'replicate, strided',
    inputs: stridedInput(2, 3, 5),
    run: (a) => a.pad([2, -1, 0, 7], 'replicate').square(),
  },
  { op: 'pad', title: 'circular', inputs: x(2, 5), run: (a) => a.pad([5, 3], 'circular').square() },
];

export const checks: GradientCheck[] = [...running, ...order, ...places, ...paddings];
export const cases = gradientCases(checks);

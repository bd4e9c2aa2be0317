// Gradients of functions that are made of other functions: arrangement, limits, statistics, einsum.
import * as ops from '../../lib/tensor/index.js';
import { type GradientCheck, gradientCases, type Input, indices } from './check.js';

const x = (...shape: number[]): Input[] => [{ shape }];
const stridedInput = (...shape: number[]): Input[] => [{ shape, strided: true }];
const shapes = (...list: number[][]): Input[] => list.map((shape) => ({ shape }));

const arrangement: GradientCheck[] = [
  { op: 'clone', inputs: stridedInput(3, 4), run: (a) => ops.clone(a).square() },
  { op: 'repeat', inputs: x(3, 1), run: (a) => ops.repeat(a, 2, 1, 3).sin() },
  { op: 'repeat', title: 'once', inputs: x(3), run: (a) => ops.repeat(a, 1).sin() },
  { op: 'repeatInterleave', inputs: x(3, 2), run: (a) => ops.repeatInterleave(a, 3, 1).sin() },
  { op: 'flip', inputs: x(3, 5), run: (a) => ops.flip(a, [0, 1]).mul(a) },
  { op: 'flip', title: 'strided', inputs: stridedInput(3, 5), run: (a) => ops.flip(a, -1).exp() },
  { op: 'flip', title: 'empty', inputs: x(0, 3), run: (a) => ops.flip(a) },
  { op: 'roll', inputs: x(5, 3), run: (a) => ops.roll(a, [2, -1], [0, 1]).mul(a) },
  { op: 'roll', title: 'flat', inputs: stridedInput(5, 3), run: (a) => ops.roll(a, -4).exp() },
  { op: 'chunk', inputs: x(7, 3), run: (a) => ops.chunk(a, 3) },
  { op: 'unbind', inputs: x(3, 5), run: (a) => ops.unbind(a, 1), dropped: [2] },
  { op: 'movedim', inputs: x(2, 3, 5), run: (a) => ops.movedim(a, 0, -1).square() },
  { op: 'unflatten', inputs: x(2, 6), run: (a) => ops.unflatten(a, 1, [3, -1]).square() },
  { op: 'diagonal', inputs: x(3, 5), run: (a) => ops.diagonal(a, 1).square() },
  {
    op: 'diagonal',
    title: 'of a batch, below',
    inputs: stridedInput(2, 5, 3),
    run: (a) => ops.diagonal(a, -2, 1, 2).exp(),
  },
  { op: 'pad', inputs: x(3, 5), run: (a) => ops.pad(a, [1, 2, 3, 0], 7).square() },
  {
    op: 'pad',
    title: 'cutting',
    inputs: stridedInput(3, 5),
    run: (a) => ops.pad(a, [-2, 1, 0, -1]),
  },
  {
    op: 'indexSelect',
    inputs: x(5, 3),
    run: (a) => ops.indexSelect(a, 0, indices([4, 0, 4], [3], a)).square(),
  },
  {
    op: 'indexSelect',
    title: 'last dim, strided',
    inputs: stridedInput(2, 3, 5),
    run: (a) => ops.indexSelect(a, -1, indices([1, 1, 3, 0], [4], a)).square(),
  },
  { op: 'tril', inputs: x(3, 5), run: (a) => ops.tril(a, 1) },
  { op: 'triu', inputs: stridedInput(2, 5, 3), run: (a) => ops.triu(a, -1).square() },
  { op: 'cat', inputs: shapes([2, 3], [4, 3]), run: (...all) => ops.cat(all) },
];

const selection: GradientCheck[] = [
  {
    op: 'clamp',
    inputs: [{ shape: [3, 7], low: -2, high: 2 }],
    run: (a) => ops.clamp(a, -0.7, 0.9),
  },
  { op: 'clamp', title: 'max only', inputs: x(7), run: (a) => ops.clamp(a, { max: 0.1 }) },
  {
    op: 'clamp',
    title: 'tensors',
    inputs: [{ shape: [3, 5], low: -2, high: 2 }, { shape: [5], low: -1, high: 0 }, ...x(3, 1)],
    run: (a, low, high) => ops.clamp(a, low, high),
  },
  { op: 'sign', inputs: [{ shape: [7], low: 0.1 }], run: (a) => ops.sign(a).add(a) },
  {
    op: 'maskedFill',
    inputs: x(3, 5),
    run: (a) => ops.maskedFill(a, ops.gt(a.detach(), 0.2), -1).square(),
  },
  {
    op: 'maskedFill',
    title: 'by a tensor',
    inputs: shapes([3, 5], []),
    run: (a, b) => ops.maskedFill(a, ops.gt(a.detach(), 0.2), b).square(),
  },
];

const statistics: GradientCheck[] = [
  ...(['var', 'std', 'logsumexp'] as const).flatMap((op): GradientCheck[] => [
    { op, inputs: x(3, 5), run: (a) => ops[op](a) },
    {
      op,
      title: 'last dim, strided',
      inputs: stridedInput(3, 5),
      run: (a) => ops[op](a, -1).square(),
    },
    {
      op,
      title: 'kept',
      inputs: x(2, 3, 5),
      run: (a) => ops[op](a, { dims: [0, 2], keepDim: true }).mul(a),
    },
  ]),
  { op: 'variance', inputs: x(7), run: (a) => ops.variance(a, { correction: 0 }) },
  { op: 'std', title: 'correction', inputs: x(7), run: (a) => ops.std(a, { correction: 2 }) },
  ...([1, 2, 3, 0.5, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY, 'fro'] as const).map(
    (p): GradientCheck => ({
      op: 'norm',
      title: `p = ${p}`,
      inputs: [{ shape: [3, 5], low: 0.2 }],
      run: (a) => ops.norm(a, p, 1),
    }),
  ),
  { op: 'norm', title: 'of all', inputs: stridedInput(3, 5), run: (a) => ops.norm(a) },
];

const products: GradientCheck[] = [
  { op: 'outer', inputs: shapes([3], [5]), run: ops.outer },
  { op: 'dot', inputs: shapes([7], [7]), run: ops.dot },
  { op: 'bmm', inputs: shapes([2, 3, 5], [2, 5, 1]), run: ops.bmm },
  ...(
    [
      ['ij,jk->ik', [3, 5], [5, 2]],
      ['bhqd,bhkd->bhqk', [2, 1, 3, 5], [2, 1, 4, 5]],
      ['i,j', [3], [5]],
      ['...i,...i->...', [2, 3, 5], [3, 5]],
      ['ij,j,i->', [3, 5], [5], [3]],
      ['ii->i', [3, 3]],
      ['ij->ji', [3, 5]],
      ['iij,jk->k', [3, 3, 5], [5, 2]],
    ] as [string, ...number[][]][]
  ).map(
    ([equation, ...list]): GradientCheck => ({
      op: 'einsum',
      title: equation,
      inputs: shapes(...list),
      run: (...all) => ops.einsum(equation, ...all),
    }),
  ),
];

export const checks: GradientCheck[] = [...arrangement, ...selection, ...statistics, ...products];
export const cases = gradientCases(checks);

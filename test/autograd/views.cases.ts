// Gradients of views, copies and joins.
import * as ops from '../../lib/tensor/index.js';
import { type GradientCheck, gradientCases } from './check.js';

const x = (...shape: number[]) => [{ shape }];
const stridedInput = (...shape: number[]) => [{ shape, strided: true }];

export const checks: GradientCheck[] = [
  { op: 'contiguous', inputs: stridedInput(3, 4), run: (a) => ops.contiguous(a).square() },
  { op: 'reshape', inputs: x(3, 4), run: (a) => ops.reshape(a, [2, -1]) },
  { op: 'reshape', title: 'strided', inputs: stridedInput(3, 4), run: (a) => ops.reshape(a, [12]) },
  {
    op: 'reshape',
    title: 'then turned',
    inputs: x(3, 4),
    run: (a) => ops.reshape(a, [4, 3]).transpose().square(),
  },
  { op: 'view', inputs: x(3, 4), run: (a) => ops.view(a, [12]).exp() },
  { op: 'flatten', inputs: x(2, 3, 4), run: (a) => ops.flatten(a, 1) },
  { op: 'transpose', inputs: x(2, 3, 4), run: (a) => ops.transpose(a, 0, 2).square() },
  { op: 'permute', inputs: x(2, 3, 4), run: (a) => ops.permute(a, [1, 2, 0]).square() },
  { op: 'expand', inputs: x(3, 1), run: (a) => ops.expand(a, [2, -1, 4]).sin() },
  { op: 'expand', title: 'same shape', inputs: x(3, 2), run: (a) => ops.expand(a, [3, 2]).sin() },
  { op: 'squeeze', inputs: x(3, 1, 4), run: (a) => ops.squeeze(a, 1).square() },
  { op: 'squeeze', title: 'all', inputs: x(1, 3, 1), run: (a) => ops.squeeze(a) },
  { op: 'unsqueeze', inputs: x(3, 4), run: (a) => ops.unsqueeze(a, -1).square() },
  {
    op: 'unsqueeze',
    title: 'strided gradient',
    inputs: x(3, 4),
    run: (a) => ops.unsqueeze(a, 0).transpose(0, 2).exp(),
  },
  { op: 'slice', inputs: x(7, 3), run: (a) => ops.slice(a, 0, 1, 6, 2) },
  {
    op: 'slice',
    title: 'negative bounds',
    inputs: x(3, 7),
    run: (a) => ops.slice(a, 1, -4, -1).square(),
  },
  { op: 'slice', title: 'nothing', inputs: x(3, 7), run: (a) => ops.slice(a, 1, 4, 4) },
  {
    op: 'slice',
    title: 'overlapping',
    inputs: x(5),
    run: (a) => a.slice(0, 0, 4).mul(a.slice(0, 1, 5)),
  },
  { op: 'narrow', inputs: x(5, 3), run: (a) => ops.narrow(a, 0, 2, 2) },
  { op: 'select', inputs: x(5, 3), run: (a) => ops.select(a, 0, -1).square() },
  { op: 'split', inputs: x(7, 3), run: (a) => ops.split(a, 3) },
  {
    op: 'split',
    title: 'last dim, one part unused',
    inputs: x(2, 6),
    run: (a) => ops.split(a, [1, 2, 3], 1),
    dropped: [1],
  },
  {
    op: 'concat',
    inputs: [{ shape: [2, 3] }, { shape: [4, 3] }, { shape: [0, 3] }],
    run: (...all) => ops.concat(all),
  },
  {
    op: 'concat',
    title: 'last dim, strided',
    inputs: [...stridedInput(3, 2), ...x(3, 4)],
    run: (...all) => ops.concat(all, -1).exp(),
  },
  {
    op: 'stack',
    inputs: [{ shape: [2, 3] }, { shape: [2, 3] }],
    run: (...all) => ops.stack(all, 1),
  },
  { op: 'cast', inputs: x(3, 4), run: (a) => ops.cast(a, a.dtype).square() },
  { op: 'to', inputs: x(3, 4), run: (a) => ops.to(a, 'cpu').mul(2) },
];

export const cases = gradientCases(checks);

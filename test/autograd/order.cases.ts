// Gradients of running sums.
import * as ops from '../../lib/tensor/index.js';
import { type GradientCheck, gradientCases, type Input } from './check.js';

const x = (...shape: number[]): Input[] => [{ shape }];
const turned = (...shape: number[]): Input[] => [{ shape, strided: true }];

const running: GradientCheck[] = [
  { op: 'cumsum', inputs: x(3, 7), run: (a) => ops.cumsum(a, 1).square() },
  {
    op: 'cumsum',
    title: 'first dim, strided',
    inputs: turned(2, 5, 3),
    run: (a) => a.cumsum(0).exp(),
  },
  { op: 'cumsum', title: 'empty', inputs: x(0, 3), run: (a) => a.cumsum(0) },
];

export const checks: GradientCheck[] = running;
export const cases = gradientCases(checks);

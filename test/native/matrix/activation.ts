// Leaky ReLU, ELU and softplus against f64: odd sizes, gaps, gradients that are added to.
import * as kernels from '../../../lib/runtime/kernels.generated.js';
import { numel } from '../../../lib/runtime/view.js';
import { elu, leakyRelu, softplus } from '../../../lib/tensor/index.js';
import type { GradientCheck } from '../../autograd/check.js';
import {
  close,
  inPlaceOperand,
  input,
  type Layout,
  type MatrixCase,
  opCase,
  output,
} from './harness.js';
import {
  aligned,
  broadcast,
  floating,
  oddSizes,
  paddedLayout,
  reversedLayout,
  unaligned,
} from './layouts.js';
import type { Mistake } from './mistake.js';

interface Curve {
  op: kernels.ActivationOp;
  alpha: number;
  threshold: number;
  value(x: number): number;
  slope(x: number): number;
}

const softplusOf = (beta: number, threshold: number): Curve => ({
  op: 'softplus',
  alpha: beta,
  threshold,
  value: (x) => (beta * x > threshold ? x : Math.log1p(Math.exp(beta * x)) / beta),
  slope: (x) => (beta * x > threshold ? 1 : 1 / (1 + Math.exp(-beta * x))),
});

/** Alphas that every dtype holds, as f32 does. */
const curves: readonly Curve[] = [
  {
    op: 'leaky_relu',
    alpha: 0.125,
    threshold: 0,
    value: (x) => (x > 0 ? x : 0.125 * x),
    slope: (x) => (x > 0 ? 1 : 0.125),
  },
  {
    op: 'elu',
    alpha: 1.5,
    threshold: 0,
    value: (x) => (x > 0 ? x : 1.5 * Math.expm1(x)),
    slope: (x) => (x > 0 ? 1 : 1.5 * Math.exp(x)),
  },
  softplusOf(1, 20),
  softplusOf(-2, 8),
];

interface Setting {
  title: string;
  shape: readonly number[];
  in?: Layout;
  out?: Layout;
}

const settings: readonly Setting[] = [
  ...oddSizes.map((n) => ({ title: 'unaligned', shape: [n], in: unaligned, out: aligned })),
  {
    title: 'with gaps',
    shape: [17, 33],
    in: paddedLayout([17, 33]),
    out: paddedLayout([17, 33], 7),
  },
  { title: 'transposed', shape: [9, 40], in: reversedLayout([9, 40]) },
  { title: 'broadcast', shape: [6, 24], in: broadcast([6, 24], [0]) },
];

/**
 * NaN, infinities, zeros and values near the limit of f16, then values on both sides of the bend.
 */
const special = [NaN, Infinity, -Infinity, 0, -0, 60000, -60000, 1e-4, -1e-4];
const withSpecial = (values: Float64Array): Float64Array =>
  values.map((x, i) => (values.length > 100 && i < special.length ? special[i]! : x));

export const cases: MatrixCase[] = floating.flatMap((dtype) =>
  curves.flatMap(({ op, alpha, threshold, value, slope }) =>
    settings.flatMap((setting) => {
      const { shape } = setting;
      const n = numel(shape);
      const title = `${op} ${alpha} [${shape}] ${setting.title}`;
      const check = close(dtype, 1, 'element');
      const args = { op, alpha, threshold };
      const forward = opCase({
        op: 'Activation',
        dtype,
        title,
        build: (random) => ({
          operands: {
            in: input(dtype, shape, withSpecial(random.uniform(n, -12, 12)), setting.in),
            out: output(dtype, shape, check, setting.out),
          },
          args,
          reference: (v) => ({ out: v.in!.map(value) }),
        }),
      });
      const backward = (accumulate: boolean): MatrixCase =>
        opCase({
          op: 'ActivationBackward',
          dtype,
          title: `${title}${accumulate ? ' adds' : ''}`,
          build(random) {
            const fullCheck = close(dtype, 1, 'tensor');
            return {
              operands: {
                in: input(dtype, shape, random.uniform(n, -12, 12), setting.in),
                dout: input(dtype, shape, random.normal(n), setting.in),
                dx: accumulate
                  ? inPlaceOperand(input(dtype, shape, random.normal(n), setting.out), fullCheck)
                  : output(dtype, shape, fullCheck, setting.out),
              },
              args: { ...args, accumulate },
              reference: (v) => ({
                dx: v.in!.map((x, i) => (accumulate ? v.dx![i]! : 0) + v.dout![i]! * slope(x)),
              }),
            };
          },
        });
      return [forward, backward(false), backward(true)];
    }),
  ),
);

const parameters = { op: 'elu', alpha: 1, threshold: 0 } as const;

export const mistakes: readonly Mistake[] = [
  {
    op: 'activation',
    what: 'shapes',
    code: 'DS_SHAPE',
    message: '[2, 4] f32',
    run: (m) => kernels.activation({ in: m([2, 4]), out: m([2, 3]), ...parameters }),
  },
  {
    op: 'activation',
    what: 'dtypes',
    code: 'DS_DTYPE',
    message: 'i32',
    run: (m) => kernels.activation({ in: m([3], 'i32'), out: m([3], 'i32'), ...parameters }),
  },
  {
    op: 'activation_backward',
    what: 'dtypes',
    code: 'DS_DTYPE',
    message: 'bf16',
    run: (m) =>
      kernels.activationBackward({
        in: m([3]),
        dout: m([3], 'bf16'),
        dx: m([3]),
        ...parameters,
        accumulate: false,
      }),
  },
];

const inputs = [{ shape: [4, 5], low: -3, high: 3, strided: true }];

export const checks: readonly GradientCheck[] = [
  { op: 'leakyRelu', inputs, run: (x) => leakyRelu(x, 0.2) },
  { op: 'leakyRelu', title: 'as a method', inputs, run: (x) => x.leakyRelu() },
  { op: 'elu', inputs, run: (x) => elu(x, 1.3) },
  { op: 'softplus', inputs, run: (x) => softplus(x) },
  { op: 'softplus', title: 'steep', inputs, run: (x) => softplus(x, { beta: 4, threshold: 3 }) },
];

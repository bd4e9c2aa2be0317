// Gradients of element-wise functions, reductions and softmax.
import * as ops from '../../lib/tensor/index.js';
import { type GradientCheck, gradientCases, type Input } from './check.js';

const positive = { low: 0.3, high: 2 };
/** Between two steps of a staircase. */
const inside = { low: 0.1, high: 0.4 };

const unaryDomains: Record<string, Partial<Input>> = {
  neg: {},
  abs: { low: 0.2 },
  exp: {},
  log: positive,
  sqrt: positive,
  rsqrt: positive,
  reciprocal: positive,
  square: {},
  sin: {},
  cos: {},
  tanh: {},
  sigmoid: {},
  relu: { low: 0.1 },
  silu: {},
  gelu: {},
  erf: {},
  log1p: { low: -0.5 },
  expm1: {},
  tan: {},
  floor: inside,
  ceil: inside,
  round: inside,
  trunc: inside,
};

const unaries: GradientCheck[] = Object.entries(unaryDomains).flatMap(([op, domain]) => {
  const run = ops[op as 'exp'];
  return [
    { op, inputs: [{ shape: [3, 7], ...domain }], run },
    { op, title: 'strided', inputs: [{ shape: [5, 3], strided: true, ...domain }], run },
    { op, title: 'empty', inputs: [{ shape: [0, 3], ...domain }], run },
  ];
});

/** Shapes of the two operands. */
const pairs: [string, number[], number[]][] = [
  ['same shape', [3, 5], [3, 5]],
  ['row', [3, 5], [5]],
  ['column', [3, 1], [3, 5]],
  ['both', [4, 1, 3], [5, 1]],
  ['scalar', [], [2, 3]],
  ['empty', [0, 3], [3]],
];

const binaryDomains: Record<string, [Partial<Input>, Partial<Input>]> = {
  add: [{}, {}],
  sub: [{}, {}],
  mul: [{}, {}],
  div: [{}, positive],
  pow: [positive, {}],
  maximum: [{}, {}],
  minimum: [{}, {}],
  atan2: [{}, positive],
};

const binaries: GradientCheck[] = Object.entries(binaryDomains).flatMap(([op, [left, right]]) => {
  const run = ops[op as 'add'] as (a: ops.Tensor, b: ops.Tensor) => ops.Tensor;
  return [
    ...pairs.map(([title, a, b]) => ({
      op,
      title,
      inputs: [
        { shape: a, ...left },
        { shape: b, ...right },
      ],
      run,
    })),
    {
      op,
      title: 'strided',
      inputs: [
        { shape: [3, 4], strided: true, ...left },
        { shape: [3, 4], strided: true, ...right },
      ],
      run,
    },
    {
      op,
      title: 'one side only',
      inputs: [
        { shape: [3, 4], ...left },
        { shape: [4], ...right, grad: false },
      ],
      run,
    },
    {
      op,
      title: 'other side only',
      inputs: [
        { shape: [3, 4], ...left, grad: false },
        { shape: [4], ...right },
      ],
      run,
    },
  ];
});

const numbers: GradientCheck[] = [
  { op: 'scale', inputs: [{ shape: [2, 3] }], run: (x) => ops.scale(x, 3, 1) },
  { op: 'add', title: 'number', inputs: [{ shape: [2, 3] }], run: (x) => x.add(2) },
  { op: 'sub', title: 'number', inputs: [{ shape: [2, 3] }], run: (x) => x.sub(2) },
  { op: 'mul', title: 'number', inputs: [{ shape: [2, 3] }], run: (x) => x.mul(-2) },
  { op: 'div', title: 'number', inputs: [{ shape: [2, 3] }], run: (x) => x.div(4) },
  { op: 'pow', title: 'number', inputs: [{ shape: [2, 3], ...positive }], run: (x) => x.pow(2.5) },
  { op: 'maximum', title: 'number', inputs: [{ shape: [9] }], run: (x) => x.maximum(0.1) },
  { op: 'gelu', title: 'tanh', inputs: [{ shape: [9] }], run: (x) => x.gelu('tanh') },
  {
    op: 'where',
    inputs: [{ shape: [3, 4] }, { shape: [4] }],
    run: (a, b) => ops.where(ops.gt(a, 0.1), a, b),
  },
  {
    op: 'where',
    title: 'number',
    inputs: [{ shape: [3, 1] }],
    run: (a) => ops.where(ops.lt(a, 0), a, 5),
  },
];

type Reduction = (x: ops.Tensor, options?: ops.ReduceOptions) => ops.Tensor;

const reductions: GradientCheck[] = (['sum', 'mean', 'max', 'min', 'prod'] as const).flatMap(
  (op) => {
    const run: Reduction = ops[op];
    return [
      { op, inputs: [{ shape: [3, 5] }], run: (x) => run(x) },
      { op, title: 'last dim', inputs: [{ shape: [2, 3, 5] }], run: (x) => run(x, { dims: -1 }) },
      {
        op,
        title: 'first and last, kept',
        inputs: [{ shape: [2, 3, 5] }],
        run: (x) => run(x, { dims: [0, 2], keepDim: true }),
      },
      {
        op,
        title: 'strided',
        inputs: [{ shape: [4, 3], strided: true }],
        run: (x) => run(x, { dims: 1 }),
      },
      {
        op,
        title: 'then used',
        inputs: [{ shape: [4, 3] }],
        run: (x) => run(x, { dims: 0 }).square(),
      },
    ] satisfies GradientCheck[];
  },
);

const softmaxes: GradientCheck[] = (['softmax', 'logSoftmax'] as const).flatMap(
  (op) =>
    [
      { op, inputs: [{ shape: [3, 7], low: -3, high: 3 }], run: (x) => ops[op](x) },
      { op, title: 'first dim', inputs: [{ shape: [3, 5] }], run: (x) => ops[op](x, 0) },
      { op, title: 'strided', inputs: [{ shape: [3, 5], strided: true }], run: (x) => ops[op](x) },
      { op, title: 'empty', inputs: [{ shape: [0, 5] }], run: (x) => ops[op](x) },
    ] satisfies GradientCheck[],
);

export const checks: GradientCheck[] = [
  ...unaries,
  ...binaries,
  ...numbers,
  ...reductions,
  ...softmaxes,
];
export const cases = gradientCases(checks);

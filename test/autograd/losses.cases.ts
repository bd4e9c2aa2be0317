// Gradients of losses.
import * as ops from '../../lib/tensor/index.js';
import { type GradientCheck, gradientCases, type Input, indices } from './check.js';

const shapes = (...list: number[][]): Input[] => list.map((shape) => ({ shape }));
const stridedInputs = (...list: number[][]): Input[] =>
  list.map((shape) => ({ shape, strided: true }));

/** Constants in the dtype and on the device of `like`. */
function constants(values: number[], shape: number[], { dtype, device }: ops.Tensor): ops.Tensor {
  const exact = ops.Tensor.from(Float64Array.from(values), { shape, dtype: 'f64' });
  return exact.to(dtype).to(device);
}

const classWeights = (like: ops.Tensor): ops.Tensor =>
  constants([1, 0.5, 2, 0, 3, 1, 0.25], [7], like);

/** A loss of two tensors of one shape, contiguous and strided. */
function pairs(op: string, run: (x: ops.Tensor, y: ops.Tensor) => ops.Tensor): GradientCheck[] {
  return [
    { op, inputs: shapes([3, 4], [3, 4]), run },
    { op, title: 'strided', inputs: [...stridedInputs([5, 3]), ...shapes([5, 3])], run },
  ];
}

const targets = (x: ops.Tensor): ops.Tensor => indices([4, -100, 0, 6, 6], [5], x);

const headOptions: ops.LinearCrossEntropyOptions[] = [
  {},
  { chunkRows: 2 },
  { chunkRows: 2, recompute: true },
  { ignoreIndex: 6 },
  { ignoreIndex: 6, skipIgnored: true },
  { ignoreIndex: 6, skipIgnored: true, recompute: true, chunkRows: 2 },
  { labelSmoothing: 0.3, reduction: 'sum' },
  { labelSmoothing: 0.3, divisor: 2.5, recompute: true, chunkRows: 3 },
];

export const checks: GradientCheck[] = [
  {
    op: 'crossEntropy',
    inputs: [{ shape: [5, 7], low: -3, high: 3 }],
    run: (x) => ops.crossEntropy(x, targets(x)),
  },
  {
    op: 'crossEntropy',
    title: 'strided',
    inputs: stridedInputs([5, 7]),
    run: (x) => ops.crossEntropy(x, targets(x)),
  },
  {
    op: 'crossEntropy',
    title: 'leading dims',
    inputs: shapes([1, 5, 7]),
    run: (x) => ops.crossEntropy(x, targets(x).reshape([1, 5])),
  },
  {
    op: 'crossEntropy',
    title: 'padded logits',
    inputs: shapes([5, 3], [7, 3]),
    run: (x, w) => ops.crossEntropy(ops.linearPadded(x, w), targets(x)),
  },
  ...headOptions.flatMap((options) =>
    [true, false].map((grad) => ({
      op: 'linearCrossEntropy',
      title: `${JSON.stringify(options)}${grad ? '' : ', frozen weight'}`,
      inputs: [{ shape: [5, 3] }, { shape: [7, 3], grad }],
      run: (x: ops.Tensor, w: ops.Tensor) =>
        ops.linearCrossEntropy(x, w, indices([4, 1, 0, 6, 6], [5], x), options),
    })),
  ),
  {
    op: 'linearCrossEntropy',
    title: 'frozen x',
    inputs: [{ shape: [5, 3], grad: false }, { shape: [7, 3] }],
    run: (x, w) => ops.linearCrossEntropy(x, w, targets(x), { recompute: true }),
  },
  {
    op: 'linearCrossEntropy',
    title: 'divisor on the device',
    inputs: shapes([5, 3], [7, 3]),
    run: (x, w) => ops.linearCrossEntropy(x, w, targets(x), { divisor: constants([3], [1], x) }),
  },
  ...([{ reduction: 'sum' }, { labelSmoothing: 0.2, divisor: 9 }] as const).map((options) => ({
    op: 'crossEntropy',
    title: JSON.stringify(options),
    inputs: shapes([5, 7]),
    run: (x: ops.Tensor) => ops.crossEntropy(x, targets(x), options),
  })),
  ...pairs('mse', (x, y) => ops.mse(x, y)),
  ...pairs('l1Loss', (x, y) => ops.l1Loss(x, y)),
  ...pairs('huberLoss', (x, y) => ops.huberLoss(x, y, { delta: 0.3, reduction: 'sum' })),
  ...pairs('smoothL1Loss', (x, y) => ops.smoothL1Loss(x, y, { beta: 0.3, reduction: 'none' })),
  {
    op: 'binaryCrossEntropyWithLogits',
    inputs: [
      { shape: [3, 5], low: -4, high: 4 },
      { shape: [3, 5], low: 0 },
    ],
    run: (x, t) => ops.binaryCrossEntropyWithLogits(x, t),
  },
  {
    op: 'binaryCrossEntropyWithLogits',
    title: 'weights',
    inputs: [
      { shape: [3, 5], strided: true },
      { shape: [3, 5], low: 0 },
    ],
    run: (x, t) =>
      ops.binaryCrossEntropyWithLogits(x, t, {
        weight: constants([0.5, 2, 3], [3, 1], x),
        posWeight: constants([1, 2, 0, 4, 0.5], [5], x),
        reduction: 'none',
      }),
  },
  {
    op: 'klDiv',
    inputs: [{ shape: [3, 4] }, { shape: [3, 4], low: 0.1 }],
    run: (x, t) => ops.klDiv(x, t, { reduction: 'batchmean' }),
  },
  {
    op: 'klDiv',
    title: 'of logarithms',
    inputs: shapes([3, 4], [3, 4]),
    run: (x, t) => ops.klDiv(x, t, { logTarget: true, reduction: 'none' }),
  },
  {
    op: 'nllLoss',
    inputs: stridedInputs([5, 7]),
    run: (x) => ops.nllLoss(x, targets(x), { weight: classWeights(x) }),
  },
  ...(['mean', 'sum', 'none'] as const).flatMap((reduction) => [
    {
      op: 'crossEntropy',
      title: `weights and smoothing, ${reduction}`,
      inputs: shapes([5, 7]),
      run: (x: ops.Tensor) =>
        ops.crossEntropy(x, targets(x), {
          weight: classWeights(x),
          labelSmoothing: 0.2,
          reduction,
        }),
    },
    {
      op: 'crossEntropy',
      title: `probabilities, ${reduction}`,
      inputs: [{ shape: [5, 7] }, { shape: [5, 7], low: 0 }],
      run: (x: ops.Tensor, t: ops.Tensor) =>
        ops.crossEntropy(x, t, { weight: classWeights(x), labelSmoothing: 0.1, reduction }),
    },
  ]),
];

export const cases = gradientCases(checks);

// Tests losses against their formulas in f64: odd sizes, weights, ignored rows, extreme logits,
// empty means.
import assert from 'node:assert/strict';
import { DsError } from '../../lib/errors.js';
import * as nn from '../../lib/nn/index.js';
import type { Device } from '../../lib/runtime/device.js';
import * as ops from '../../lib/tensor/index.js';
import { scope, Tensor } from '../../lib/tensor/index.js';
import { assertClose, generator, indices } from '../autograd/check.js';
import type { Case } from '../support/case.js';

const ROWS = 37;
const CLASSES = 13;

const LOSSES: Readonly<Record<string, (x: Tensor, t: Tensor) => Tensor>> = {
  mse: (x, t) => new nn.MSELoss().call(x, t),
  l1: (x, t) => ops.l1Loss(x, t),
  huber: (x, t) => ops.huberLoss(x, t),
  smoothL1: (x, t) => ops.smoothL1Loss(x, t),
  bce: (x, t) => ops.binaryCrossEntropyWithLogits(x, t),
  klDiv: (x, t) => ops.klDiv(x, t),
};

type Reduction = ops.LossReduction;
const reductions: readonly Reduction[] = ['mean', 'sum', 'none'];

const draw = (name: string, count: number, low: number, high: number): number[] => {
  const random = generator(name);
  return Array.from({ length: count }, () => Math.fround(low + random() * (high - low)));
};

function lossCase(name: string, body: (device: Device) => void): Case {
  return { name: `loss: ${name}`, run: (device) => scope(() => body(device)) };
}

const refuses = (code: string, body: () => unknown): void =>
  assert.throws(body, (error: unknown) => error instanceof DsError && error.code === code);

const total = (values: readonly number[]): number => values.reduce((sum, x) => sum + x, 0);

function reduce(losses: number[], reduction: Reduction, divisor = losses.length): number[] {
  return reduction === 'none' ? losses : [total(losses) / (reduction === 'sum' ? 1 : divisor)];
}

/** Compares a loss of two tensors [rows, classes] with `formula`, at each reduction. */
function pointwise(
  name: string,
  loss: (x: Tensor, t: Tensor, reduction: Reduction) => Tensor,
  formula: (x: number, t: number, index: number) => number,
  range: readonly [number, number] = [-3, 3],
): Case {
  return lossCase(name, (device) => {
    const x = draw(`${name} x`, ROWS * CLASSES, -5, 5);
    const t = draw(`${name} t`, ROWS * CLASSES, ...range);
    const shape = [ROWS, CLASSES];
    const [input, target] = [x, t].map((values) => Tensor.from(values, { shape, device }));
    const losses = x.map((value, i) => formula(value, t[i] as number, i));
    for (const reduction of reductions) {
      const out = loss(input as Tensor, target as Tensor, reduction);
      assert.deepEqual(out.shape, reduction === 'none' ? shape : []);
      assertClose(out.toArray(), reduce(losses, reduction), 2e-6, reduction);
    }
  });
}

const huber = (d: number, delta: number): number =>
  Math.abs(d) < delta ? (d * d) / 2 : delta * (Math.abs(d) - delta / 2);

const softplus = (x: number): number => Math.max(x, 0) + Math.log1p(Math.exp(-Math.abs(x)));

const classWeights = draw('class weights', CLASSES, 0, 2);
const posWeights = draw('positive weights', CLASSES, 0, 4);
const of = (values: readonly number[], device: Device): Tensor =>
  Tensor.from([...values], { device });

/** log softmax of every row, in f64. */
function logSoftmax(x: readonly number[]): number[] {
  const out: number[] = [];
  for (let at = 0; at < x.length; at += CLASSES) {
    const row = x.slice(at, at + CLASSES);
    const largest = Math.max(...row);
    const lse = largest + Math.log(total(row.map((value) => Math.exp(value - largest))));
    out.push(...row.map((value) => value - lse));
  }
  return out;
}

interface Rows {
  targets: readonly number[];
  weights: readonly number[];
  smoothing: number;
}

/** The losses of rows with class targets, and the divisor of their mean. Ignored: -100. */
function rowLosses(logs: readonly number[], { targets, weights, smoothing }: Rows) {
  let divisor = 0;
  const losses = targets.map((target, row) => {
    if (target === -100) return 0;
    divisor += weights[target] as number;
    const localValues = logs
      .slice(row * CLASSES, (row + 1) * CLASSES)
      .map((v, c) => -v * weights[c]!);
    return (1 - smoothing) * localValues[target]! + (smoothing / CLASSES) * total(localValues);
  });
  return { losses, divisor };
}

const rowTargets = draw('targets', ROWS, 0, CLASSES).map((value, i) =>
  i % 5 === 3 ? -100 : Math.floor(value),
);
const ones = new Array<number>(CLASSES).fill(1);

const classCases = [0, 0.15].flatMap((smoothing) =>
  [ones, classWeights].map((weights) =>
    lossCase(`crossEntropy, smoothing ${smoothing}, weights ${weights !== ones}`, (device) => {
      const x = draw('logits', ROWS * CLASSES, -8, 8);
      const logits = Tensor.from(x, { shape: [ROWS, CLASSES], device });
      const target = indices(rowTargets, [ROWS], logits);
      const rows = { targets: rowTargets, weights, smoothing };
      const { losses, divisor } = rowLosses(logSoftmax(x), rows);
      const weight = weights === ones ? undefined : of(weights, device);
      for (const reduction of reductions) {
        const options = { weight, labelSmoothing: smoothing, reduction };
        const out = new nn.CrossEntropyLoss(options).call(logits, target);
        assertClose(out.toArray(), reduce(losses, reduction, divisor), 2e-6, reduction);
        if (smoothing > 0) continue;
        const nll = new nn.NLLLoss({ weight, reduction }).call(logits.logSoftmax(), target);
        assertClose(nll.toArray(), reduce(losses, reduction, divisor), 2e-6, `nll ${reduction}`);
      }
    }),
  ),
);

const probabilities = lossCase('crossEntropy of probabilities', (device) => {
  const x = draw('logits', ROWS * CLASSES, -8, 8);
  const p = draw('probabilities', ROWS * CLASSES, 0, 1);
  const [logits, target] = [x, p].map((v) => Tensor.from(v, { shape: [ROWS, CLASSES], device }));
  const logs = logSoftmax(x);
  const smoothed = p.map((value) => value * 0.9 + 0.1 / CLASSES);
  const each = logs.map((v, i) => -v * smoothed[i]! * classWeights[i % CLASSES]!);
  const losses = rowTargets.map((_, row) => total(each.slice(row * CLASSES, (row + 1) * CLASSES)));
  for (const reduction of reductions) {
    const options = { weight: of(classWeights, device), labelSmoothing: 0.1, reduction };
    const out = ops.crossEntropy(logits as Tensor, target as Tensor, options);
    assertClose(out.toArray(), reduce(losses, reduction), 2e-6, reduction);
  }
});

const corners: Case[] = [
  lossCase('means over rows of which none counts are 0, and so are their gradients', (device) => {
    const logits = ops.zeros([3, CLASSES], { device }).requireGrad();
    const ignored = indices([-100, -100, -100], [3], logits);
    for (const options of [{ labelSmoothing: 0.1 }, { weight: of(classWeights, device) }]) {
      const loss = ops.crossEntropy(logits, ignored, options);
      assert.equal(loss.item(), 0);
      loss.backward();
      assert.deepEqual(new Set(logits.grad?.toArray()), new Set([0]));
    }
    const counted = ops.zeros([1], { device });
    const before = ops.countEmptyMeans(counted);
    ops.crossEntropy(logits, ignored, { labelSmoothing: 0.1 });
    ops.countEmptyMeans(before);
    assert.equal(counted.item(), 1);
  }),
  lossCase('what an ignored row holds does not matter', (device) => {
    const values = draw('poisoned', 2 * CLASSES, -1, 1).fill(Number.NEGATIVE_INFINITY, CLASSES + 1);
    const logits = Tensor.from(values, { shape: [2, CLASSES], device });
    const target = indices([4, -100], [2], logits);
    const loss = ops.crossEntropy(logits, target, { labelSmoothing: 0.1, reduction: 'none' });
    const [first, second] = loss.toArray() as [number, number];
    assert.ok(Number.isFinite(first) && first > 0);
    assert.equal(second, 0);
  }),
  lossCase('binary cross-entropy of extreme logits is exact and has a gradient', (device) => {
    const logits = [-200, -30, -1e-4, 0, 1e-4, 30, 200];
    const x = Tensor.from(logits, { device }).requireGrad();
    const ones = Tensor.from(logits.map(() => 1)).to(device);
    const losses = ops.binaryCrossEntropyWithLogits(x, ones, { reduction: 'none' });
    losses.toArray().forEach((loss, i) => {
      const expected = softplus(-Math.fround(logits[i] as number));
      assert.ok(Math.abs(loss - expected) <= 3e-6 * expected + 1e-44, `${logits[i]}: ${loss}`);
    });
    losses.sum().backward();
    const slopes = logits.map((value) => -1 / (1 + Math.exp(value)));
    assertClose(x.grad?.toArray() ?? [], slopes, 1e-6, 'gradient');
  }),
  lossCase('16-bit logits have f32 losses, of the logits as they are', (device) => {
    const x = draw('half', 5 * CLASSES, -4, 4);
    for (const dtype of ['f16', 'bf16'] as const) {
      const logits = Tensor.from(x, { shape: [5, CLASSES], device }).to(dtype);
      const target = indices([1, 0, 12, 7, 7], [5], logits);
      const options = { labelSmoothing: 0.1 };
      const loss = ops.crossEntropy(logits, target, options);
      assert.equal(loss.dtype, 'f32');
      const wide = ops.crossEntropy(logits.to('f32'), target, options);
      // On a GPU, packets of another size change the order of the sum.
      assertClose([loss.item()], [wide.item()], 1e-6, dtype);
    }
  }),
  lossCase('klDiv is 0 where the target is 0, and divides by the batch on request', (device) => {
    const x = Tensor.from([-1, -2, -3, -4], { shape: [2, 2], device }).requireGrad();
    const target = Tensor.from([0, 1, 0.5, 0], { shape: [2, 2], device });
    const loss = ops.klDiv(x, target, { reduction: 'batchmean' });
    assertClose([loss.item()], [(2 + 0.5 * (Math.log(0.5) + 3)) / 2], 1e-6, 'loss');
    loss.backward();
    assertClose(x.grad?.toArray() ?? [], [0, -0.5, -0.25, 0], 1e-6, 'gradient');
  }),
  lossCase('of two floating dtypes are those of the wider one', (device) => {
    const values = draw('wider', 12, -2, 2);
    const expected = draw('wider target', 12, 0, 1);
    for (const [a, b, wide] of [
      ['f16', 'f32', 'f32'],
      ['f32', 'bf16', 'f32'],
      ['f16', 'bf16', 'f32'],
      ['bf16', 'f64', 'f64'],
    ] as const) {
      if (wide === 'f64' && device.kind !== 'cpu') continue; // f64 exists on the CPU only.
      for (const [name, loss] of Object.entries(LOSSES)) {
        const x = Tensor.from(values, { device }).to(a).detach().requireGrad();
        const t = Tensor.from(expected, { device }).to(b);
        const wider = x.detach().to(wide).requireGrad();
        const [own, other] = [loss(x, t), loss(wider, t.to(wide))];
        assert.equal(own.dtype, wide, name);
        assert.deepEqual(own.toArray(), other.toArray(), `${name} of ${a} and ${b}`);
        own.backward();
        other.backward();
        assert.equal(x.grad?.dtype, a, name);
        assert.deepEqual(x.grad?.toArray(), wider.grad?.to(a).toArray(), name);
      }
    }
    assert.equal(ops.mse(ops.zeros([2], { dtype: 'f16', device }), 1).dtype, 'f16');
  }),
  lossCase('of nothing: a sum of 0, a mean of NaN', (device) => {
    const empty = ops.zeros([0, 3], { device });
    assert.equal(ops.l1Loss(empty, empty, { reduction: 'sum' }).item(), 0);
    assert.ok(Number.isNaN(ops.l1Loss(empty, empty).item()));
    assert.deepEqual(ops.huberLoss(empty, empty, { reduction: 'none' }).shape, [0, 3]);
  }),
  lossCase('class weights move with the module and are saved with it', (device) => {
    const loss = new nn.CrossEntropyLoss({ weight: ops.ones([3]).keep() });
    assert.deepEqual(Object.keys(loss.stateDict()), ['weight']);
    loss.to(device);
    assert.equal(loss.weight?.device, device);
  }),
  lossCase('bad arguments are refused by name', (device) => {
    const x = ops.zeros([2, 3], { device });
    const t = indices([0, 1], [2], x);
    const bad = (name: string): never => ({ [name]: 'avg' }) as never;
    refuses('DS_ARGUMENT', () => ops.l1Loss(x, x, bad('reduction')));
    refuses('DS_ARGUMENT', () => ops.l1Loss(x, x, bad('size_average')));
    refuses('DS_ARGUMENT', () => new nn.BCEWithLogitsLoss(bad('pos')));
    refuses('DS_ARGUMENT', () => ops.huberLoss(x, x, { delta: 0 }));
    refuses('DS_ARGUMENT', () => ops.crossEntropy(x, t, { labelSmoothing: 1.5 }));
    refuses('DS_ARGUMENT', () => ops.crossEntropy(x, x, { ignoreIndex: 0 }));
    refuses('DS_SHAPE', () => ops.crossEntropy(x, t, { weight: ops.ones([2], { device }) }));
    refuses('DS_SHAPE', () => ops.binaryCrossEntropyWithLogits(x, ops.zeros([3], { device })));
    const wide = { posWeight: ops.ones([4, 2, 3], { device }) };
    refuses('DS_SHAPE', () => ops.binaryCrossEntropyWithLogits(x, x, wide));
    refuses('DS_DTYPE', () => ops.nllLoss(x, x.select(1, 0)));
  }),
];

export const cases: Case[] = [
  pointwise(
    'mse',
    (x, t, reduction) => new nn.MSELoss({ reduction }).call(x, t),
    (x, t) => (x - t) ** 2,
  ),
  pointwise(
    'l1',
    (x, t, reduction) => new nn.L1Loss({ reduction }).call(x, t),
    (x, t) => Math.abs(x - t),
  ),
  pointwise(
    'huber',
    (x, t, reduction) => new nn.HuberLoss({ delta: 1.5, reduction }).call(x, t),
    (x, t) => huber(x - t, 1.5),
  ),
  ...[0, 0.7].map((beta) =>
    pointwise(
      `smoothL1, beta ${beta}`,
      (x, t, reduction) => new nn.SmoothL1Loss({ beta, reduction }).call(x, t),
      (x, t) => (beta === 0 ? Math.abs(x - t) : huber(x - t, beta) / beta),
    ),
  ),
  pointwise(
    'binary cross-entropy',
    (x, t, reduction) => new nn.BCEWithLogitsLoss({ reduction }).call(x, t),
    (x, t) => t * softplus(-x) + (1 - t) * softplus(x),
    [0, 1],
  ),
  pointwise(
    'binary cross-entropy with weights',
    (x, t, reduction) => {
      const posWeight = of(posWeights, x.device);
      const weight = of(classWeights, x.device);
      return new nn.BCEWithLogitsLoss({ weight, posWeight, reduction }).call(x, t);
    },
    (x, t, i) => {
      const c = i % CLASSES;
      return classWeights[c]! * (posWeights[c]! * t * softplus(-x) + (1 - t) * softplus(x));
    },
    [0, 1],
  ),
  pointwise(
    'KL divergence',
    (x, t, reduction) => new nn.KLDivLoss({ reduction }).call(x, t),
    (x, t) => t * (Math.log(t) - x),
    [0.01, 1],
  ),
  pointwise(
    'KL divergence of logarithms',
    (x, t, reduction) => new nn.KLDivLoss({ reduction, logTarget: true }).call(x, t),
    (x, t) => Math.exp(t) * (t - x),
  ),
  ...classCases,
  probabilities,
  ...corners,
];

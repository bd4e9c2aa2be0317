// Tests the output of compression techniques against explicit arithmetic.

import { selectLargest } from '../../lib/compression/pruning.js';
import { createWeightQuantization, precisionAt } from '../../lib/compression/quantization.js';
import { quantizeValues } from '../../lib/compression/quantizers.js';
import { resolveConfig } from '../../lib/config/index.js';
import { initCompression, nn, seed, Tensor } from '../../lib/index.js';
import { configOf, type Section } from './models.js';

const f = Math.fround;

/** Rounds to the nearest integer, halves to even. */
function nearest(x: number): number {
  const low = Math.floor(x);
  if (x - low !== 0.5) return Math.round(x);
  return low % 2 === 0 ? low : low + 1;
}

const within = (x: number, low: number, high: number): number => Math.min(Math.max(x, low), high);

type Rule = (group: number[], bits: number) => number[];

const symmetric: Rule = (group, bits) => {
  const step = (2 * Math.max(...group.map(Math.abs))) / 2 ** bits;
  const half = 2 ** (bits - 1);
  return group.map((x) =>
    step === 0 ? 0 : f(within(nearest(f(x / step)), -half, half - 1) * step),
  );
};

const asymmetric: Rule = (group, bits) => {
  const [least, largest] = [Math.min(...group), Math.max(...group)];
  const step = f(f(largest - least) / 2 ** bits);
  const zero = f(nearest(f(least / step)) * step);
  return group.map((x) =>
    f(f(within(nearest(f(f(x - zero) / step)), 0, 2 ** bits - 1) * step) + zero),
  );
};

const sizes = (group: number[]): number[] => group.map(Math.abs);
const total = (group: number[]): number => group.reduce((sum, x) => sum + x, 0);

const ternary: Rule = (group) => {
  const threshold = (0.7 * total(sizes(group))) / group.length;
  const beyond = sizes(group).filter((x) => x > threshold);
  const size = beyond.length === 0 ? 0 : total(beyond) / beyond.length;
  return group.map((x) => (Math.abs(x) > threshold ? Math.sign(x) * size : 0));
};

const binary: Rule = (group) => {
  const size = total(sizes(group)) / group.length;
  return group.map((x) => Math.sign(x) * size);
};

test.each([
  ['symmetric', 8, symmetric],
  ['symmetric', 3, symmetric],
  ['asymmetric', 4, asymmetric],
  ['symmetric', 2, ternary],
  ['symmetric', 1, binary],
] as const)('%s rounding to %i bits', (type, bits, rule) => {
  seed(bits);
  const x = Tensor.from(
    Array.from({ length: 21 }, (_, i) => f(Math.sin(i * 12.9898) * 43.7)),
    { shape: [3, 7] },
  );
  const got = quantizeValues(x, { bits, type, groups: 3, noise: null }).toArray();
  const all = x.toArray();
  const expected = [0, 1, 2].flatMap((i) => rule(all.slice(7 * i, 7 * i + 7), bits));
  got.forEach((value, i) => {
    expect(value).toBeCloseTo(expected[i] as number, 4);
  });
});

test('groups of equal values stay finite', () => {
  for (const bits of [1, 2, 4]) {
    const zeros = quantizeValues(Tensor.from([0, 0, 0]), {
      bits,
      type: 'symmetric',
      groups: 1,
      noise: null,
    });
    expect(zeros.toArray().map(Math.abs)).toEqual([0, 0, 0]);
  }
  const same = Tensor.from([2.5, 2.5]);
  expect(
    quantizeValues(same, { bits: 4, type: 'asymmetric', groups: 1, noise: null }).toArray(),
  ).toEqual([2.5, 2.5]);
});

const weights = (params: object, shared: object = {}): Section => ({
  weight_quantization: {
    shared_parameters: { enabled: true, ...shared },
    different_groups: { one: { params: params as never } },
  },
});

test.each([3, 0, 1])('bits fall as in a loop that counts, from a period of %i', (first) => {
  const mixed = { enabled: true, quantize_change_ratio: 0.125 };
  const section = weights(
    { start_bits: 9, target_bits: 5, quantization_period: first },
    { fp16_mixed_quantize: mixed },
  );
  const { weight_quantization } = resolveConfig(configOf(section), {
    worldSize: 1,
  }).compression_training;
  const { params } = weight_quantization.different_groups.one as never as {
    params: Parameters<typeof precisionAt>[2];
  };
  let [bits, period, real] = [9, first, 1];
  for (let count = 1; count < 40; ++count) {
    real = Math.max(0, real - 0.125);
    if (bits > 5 && count >= period) [bits, period, real] = [bits - 1, 2 * period, 1];
    const expected = { bits, fraction: 1 - real };
    expect(precisionAt(count, weight_quantization.shared_parameters, params)).toEqual(expected);
  }
});

test('stochastic rounding is right in the mean, and the same for the same step', () => {
  const { weight_quantization } = resolveConfig(
    configOf(weights({ start_bits: 3, target_bits: 3 }, { rounding: 'stochastic' })),
    { worldSize: 1 },
  ).compression_training;
  const technique = (name: string) =>
    createWeightQuantization(
      { name, groups: 1 },
      weight_quantization.shared_parameters,
      weight_quantization.different_groups.one?.params as never,
    );
  const values = [1, 0.3, -0.1, -1];
  const weight = Tensor.from(Array.from({ length: 800 }, (_, i) => values[i % 4] as number));
  const at = (name: string, step: number): number[] =>
    technique(name).compress({ weight, bias: null }, step).weight.toArray();
  const drawn = Array.from({ length: 20 }, (_, step) => at('a', step)).flat();
  [0.75, 0.3, -0.1, -1].forEach((value, i) => {
    const mean = total(drawn.filter((_, n) => n % 4 === i)) / (drawn.length / 4);
    expect(Math.abs(mean - value)).toBeLessThan(0.02);
  });
  expect(at('a', 7)).toEqual(at('a', 7));
  expect(at('a', 7)).not.toEqual(at('a', 8));
  expect(at('a', 7)).not.toEqual(at('b', 7));
});

test('pruning keeps the largest weights, and the first of equal ones', () => {
  const values = Tensor.from([3, 1, 3, 2, 3, 0, -1], { shape: [7, 1] });
  expect(selectLargest(values, 0.25).toArray()).toEqual([1, 0, 1, 0, 0, 0, 0]);
  expect(selectLargest(values, 0.5).toArray()).toEqual([1, 0, 1, 1, 1, 0, 0].map((x) => x));
});

/** A linear layer [4, 6] in a list, compressed by `section`. */
function layer(section: Section): { module: nn.Module; own: nn.Linear } {
  seed(11);
  const localLayer = new nn.Linear(6, 4);
  const module = initCompression(new nn.Sequential(localLayer), configOf(section));
  return { module, own: localLayer };
}

const x = Tensor.from(
  Array.from({ length: 18 }, (_, i) => Math.cos(i)),
  { shape: [3, 6] },
).keep();

/**
 * The gradients of sum(y^2) / 2 for a weight W [4, 6] and bias b: dy = y, dW = y^T x, db = sum y.
 */
function reference(weight: number[], bias: number[]) {
  const rows = x.toArray();
  const at = (i: number, k: number): number => rows[6 * i + k] as number;
  const y = [0, 1, 2].map((i) =>
    bias.map((b, o) =>
      Array.from({ length: 6 }, (_, k) => at(i, k) * (weight[6 * o + k] as number)).reduce(
        (sum, value) => sum + value,
        b,
      ),
    ),
  );
  const dy = (i: number, o: number): number => (y[i] as number[])[o] as number;
  const dW = Array.from({ length: 24 }, (_, n) =>
    total([0, 1, 2].map((i) => dy(i, Math.floor(n / 6)) * at(i, n % 6))),
  );
  const db = [0, 1, 2, 3].map((o) => total([0, 1, 2].map((i) => dy(i, o))));
  return { y: y.flat(), dW, db };
}

const closely = (got: readonly number[] | undefined, expected: readonly number[]): void => {
  expect(got?.length).toBe(expected.length);
  expected.forEach((value, i) => {
    expect(got?.[i]).toBeCloseTo(value, 4);
  });
};

/** The expected weights of a layer, and a mask of the gradients that pass. */
interface Expected {
  weight: number[];
  bias: number[];
  mask: (i: number) => number;
  rows?: (output: number) => number;
}

/** Compares forward and backward of `module` with the expected values. */
function check(
  module: nn.Module,
  localLayer: nn.Linear,
  { weight, bias, mask, rows = () => 1 }: Expected,
): { dW: number[] } {
  const { y, dW, db } = reference(weight, bias);
  const out = (module as nn.Sequential).call(x) as Tensor;
  closely(out.toArray(), y);
  out.square().sum().mul(0.5).backward();
  closely(
    localLayer.weight.grad?.toArray(),
    dW.map((value, i) => value * mask(i)),
  );
  closely(
    localLayer.bias?.grad?.toArray(),
    db.map((value, o) => value * rows(o)),
  );
  return { dW };
}

test('the forward uses the rounded weight, and the gradient passes unchanged', () => {
  const { module, own } = layer(
    weights(
      { start_bits: 4, target_bits: 4 },
      { quantization_type: 'asymmetric', quantize_groups: 4 },
    ),
  );
  const all = own.weight.toArray();
  const weight = [0, 1, 2, 3].flatMap((i) => asymmetric(all.slice(6 * i, 6 * i + 6), 4));
  check(module, own, {
    weight,
    bias: own.bias?.toArray() as number[],
    mask: () => 1,
  });
});

/** 1 for the `keep` largest of `values`. */
const largest = (values: number[], keep: number): number[] => {
  const order = values.map((value, i) => [value, i] as const).sort(([a], [b]) => b - a);
  const stay = new Set(order.slice(0, keep).map(([, i]) => i));
  return values.map((_, i) => (stay.has(i) ? 1 : 0));
};

const prune = (technique: string, shared: object, ratio = 0.4): Section => ({
  [technique]: {
    shared_parameters: { enabled: true, schedule_offset: 0, ...shared },
    different_groups: { one: { params: { dense_ratio: ratio }, modules: ['0'] } },
  },
});

test('sparse pruning removes the smallest weights', () => {
  const { module, own } = layer(prune('sparse_pruning', { method: 'l1' }));
  const all = own.weight.toArray();
  const mask = largest(sizes(all), 10);
  const weight = all.map((value, i) => value * (mask[i] as number));
  check(module, own, {
    weight,
    bias: own.bias?.toArray() as number[],
    mask: (i) => mask[i] as number,
  });
});

test('row pruning removes rows and their biases', () => {
  const { module, own } = layer(prune('row_pruning', { method: 'l1' }));
  const all = own.weight.toArray();
  const mask = largest(
    [0, 1, 2, 3].map((o) => total(sizes(all.slice(6 * o, 6 * o + 6)))),
    2,
  );
  const of = (i: number): number => mask[Math.floor(i / 6)] as number;
  const bias = own.bias?.toArray() as number[];
  check(module, own, {
    weight: all.map((value, i) => value * of(i)),
    bias: bias.map((value, o) => value * (mask[o] as number)),
    mask: of,
    rows: (o) => mask[o] as number,
  });
});

test('learned scores select the mask and receive its gradient', () => {
  const { module, own } = layer(prune('sparse_pruning', { method: 'topk' }));
  const [compressed] = module.children() as [nn.Module & { sparse_mask_scores: nn.Parameter }];
  const { sparse_mask_scores: scores } = compressed;
  const mask = largest(scores.toArray(), 10);
  const all = own.weight.toArray();
  const { dW } = check(module, own, {
    weight: all.map((value, i) => value * (mask[i] as number)),
    bias: own.bias?.toArray() as number[],
    mask: (i) => mask[i] as number,
  });
  closely(
    scores.grad?.toArray(),
    dW.map((value, i) => value * (all[i] as number)),
  );
});

test('head pruning masks blocks of inputs', () => {
  const { module, own } = layer(prune('head_pruning', { num_heads: 3 }, 0.5));
  const [compressed] = module.children() as [nn.Module & { head_pruning_scores: nn.Parameter }];
  const { head_pruning_scores: scores } = compressed;
  expect(scores.shape).toEqual([1, 3]);
  const mask = largest(scores.toArray(), 2);
  const of = (i: number): number => mask[Math.floor((i % 6) / 2)] as number;
  const all = own.weight.toArray();
  const weight = all.map((value, i) => value * of(i));
  const { dW } = check(module, own, {
    weight,
    bias: own.bias?.toArray() as number[],
    mask: (i) => of(i),
  });
  const perHead = [0, 1, 2].map((h) =>
    total(dW.map((value, i) => (Math.floor((i % 6) / 2) === h ? value * (all[i] as number) : 0))),
  );
  closely(scores.grad?.toArray(), perHead);
});

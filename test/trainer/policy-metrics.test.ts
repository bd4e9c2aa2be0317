// Metrics of policies by TRL's names against their definitions, on numbers.

import type { ProcessGroup } from '../../lib/comm/index.js';
import { Tensor } from '../../lib/index.js';
import { cpu } from '../../lib/runtime/device.js';
import { computeRatios, computeSequenceRatios } from '../../lib/trainer/methods/policy-losses.js';
import {
  computeClipMetrics,
  computeSamplerMetrics,
} from '../../lib/trainer/methods/policy-metrics.js';
import { type DeviceSums, extremeOf, StepMetrics } from '../../lib/trainer/step-metrics.js';

const of = (rows: readonly (readonly number[])[]): Tensor =>
  Tensor.from(Float32Array.from(rows.flat()), { shape: [rows.length, rows[0]?.length ?? 0] });

// Logarithms of ratios to `old`; the third row has no tokens that count.
const LOGS = [
  [0.5, -0.5, 0.1],
  [-0.4, -0.1, 9],
  [7, 7, 7],
];
const SAMPLER = [
  [0.2, 0, -0.1],
  [0.05, -0.3, 9],
  [9, 9, 9],
];
const MASK = [
  [1, 1, 1],
  [1, 1, 0],
  [0, 0, 0],
];
const zeros = LOGS.map((row) => row.map(() => 0));
const batch = {
  logp: of(LOGS),
  old: of(zeros),
  mask: of(MASK),
  sampler: of(SAMPLER),
  reference: null,
  advantages: of([[1], [-1], [1]]),
};
const options = { epsilon: 0.2, epsilonHigh: 0.28, loss: 'dapo' as const };
const COUNTED = 5;

const alone = { size: 1, device: cpu() } as ProcessGroup;

function valuesOf(sums: DeviceSums): Record<string, number> {
  const metrics = new StepMetrics(alone);
  metrics.add(sums);
  metrics.fetch();
  const found = metrics.read();
  metrics.dispose();
  return found;
}

function expectAll(found: Record<string, number>, expected: Record<string, number>): void {
  expect(Object.keys(found).sort()).toEqual(Object.keys(expected).sort());
  for (const [name, value] of Object.entries(expected)) {
    expect([name, found[name]]).toEqual([name, expect.closeTo(value, 5)]);
  }
}

test('ratios of tokens', () => {
  // Row 0 (A > 0): e^0.5 is above 1.28. Row 1 (A < 0): e^-0.4 is below 0.8.
  const found = computeClipMetrics(computeRatios(batch, 'token'), options as never, COUNTED);
  expectAll(valuesOf(found), {
    'clip_ratio/low_mean': 1 / 5,
    'clip_ratio/low_min': 0,
    'clip_ratio/high_mean': 1 / 5,
    'clip_ratio/high_max': 1 / 3,
    'clip_ratio/region_mean': 2 / 5,
  });
});

test('ratios of sequences', () => {
  // The means of the logarithms are 0.1 / 3 and -0.25: only the second one is clipped.
  const found = computeClipMetrics(computeRatios(batch, 'sequence'), options as never, COUNTED);
  expectAll(valuesOf(found), {
    'clip_ratio/low_mean': 1 / 3,
    'clip_ratio/low_min': 0,
    'clip_ratio/high_mean': 0,
    'clip_ratio/high_max': 0,
    'clip_ratio/region_mean': 1 / 3,
  });
  // Leave-one-out: the sums are 0.1, -0.5 and 0.
  const ratio = computeSequenceRatios(batch);
  const ofSums = computeClipMetrics({ ratio, batch, bySequence: ratio }, options as never, COUNTED);
  expect(valuesOf(ofSums)['clip_ratio/low_mean']).toBeCloseTo(1 / 3, 5);
});

test('losses without two limits', () => {
  const ratios = computeRatios(batch, 'token');
  const cispo = { ...options, loss: 'cispo', epsilonHigh: 1.5 } as never;
  expectAll(valuesOf(computeClipMetrics(ratios, cispo, COUNTED)), { cispo_clip_ratio: 1 / 5 });
  const vespo = { ...options, loss: 'vespo' } as never;
  // k 2, L 3 for A > 0, else 3 and 2, by the product of the ratios.
  const weight = (log: number, k: number, l: number) => Math.exp(l + k * log - l * Math.exp(log));
  const mean = (weight(0.1, 2, 3) + weight(-0.5, 3, 2) + weight(0, 2, 3)) / 3;
  expectAll(valuesOf(computeClipMetrics(ratios, vespo, COUNTED)), { 'vespo/phi_seq_mean': mean });
  expect(computeClipMetrics(ratios, { ...options, loss: 'sapo' } as never, COUNTED)).toEqual({});
});

test.each([
  [null, [-0.2, 0, 0.1, -0.05, 0.3].map(Math.exp)],
  ['token_truncate', [-0.2, 0, 0.1, -0.05, 0.3].map((x) => Math.min(1.2, Math.exp(x)))],
  ['token_mask', [-0.2, 0, 0.1, -0.05, 0.3].map((x) => (x < 0.25 ? Math.exp(x) : 0))],
  ['sequence_truncate', [Math.exp(-0.1), 1.2, 1]],
  ['sequence_mask', [Math.exp(-0.1), 0, 1]],
] as const)('the sampler with the correction %s', (correction, factors) => {
  const sums = computeSamplerMetrics(batch, { correction, correctionRange: [0, 1.2] }, COUNTED);
  const name = 'sampling/importance_sampling_ratio';
  expectAll(valuesOf(sums), {
    'sampling/sampling_logp_difference/mean': (0.2 + 0.1 + 0.05 + 0.3) / 5,
    'sampling/sampling_logp_difference/max': 0.3,
    [`${name}/min`]: Math.min(...factors),
    [`${name}/mean`]: factors.reduce((sum, value) => sum + value, 0) / factors.length,
    [`${name}/max`]: Math.max(...factors),
  });
});

test('extremes are over all micro-batches since the last fetch', () => {
  const metrics = new StepMetrics(alone);
  const add = (a: number, b: number): void =>
    metrics.add({
      least: extremeOf(Tensor.from(a), 'min'),
      mean: { sum: a, count: 1 },
      most: extremeOf(Tensor.from(b), 'max'),
    });
  add(3, 4);
  add(-1, 2);
  metrics.fetch();
  add(8, 9);
  expect(metrics.read()).toEqual({ least: -1, mean: 1, most: 4 });
  metrics.fetch();
  expect(metrics.read()).toEqual({ least: 8, mean: 8, most: 9 });
  metrics.fetch();
  expect(metrics.read()).toEqual({});
  metrics.dispose();
});

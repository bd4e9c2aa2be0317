// Codebooks of 4-bit weights and of their 8-bit scales.
import { required } from '../runtime/required.js';

/**
 * The 16 values of NF4: quantiles of a normal distribution, scaled to [-1, 1], with 0 among them.
 * Source: Dettmers et al. 2023, "QLoRA", appendix E.
 */
export const NF4_CODE: readonly number[] = [
  -1, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
  -0.18477343022823334, -0.09105003625154495, 0, 0.07958029955625534, 0.16093020141124725,
  0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
  0.7229568362236023, 1,
];

const EXPONENTS = 7;
const { fround } = Math;

/**
 * Returns n f32 values from `start` to `end`, each rounded once. The second half counts from the
 * end.
 */
function linspace(start: number, end: number, n: number): number[] {
  const from = fround(start);
  const step = fround((end - from) / (n - 1));
  return Array.from({ length: n }, (_, i) =>
    fround(i < n / 2 ? from + step * i : end - step * (n - 1 - i)),
  );
}

/**
 * Returns the 256 values of the dynamic 8-bit type in ascending order: 0, 1 and signed values. Each
 * power of ten from 1e-6 to 1 has twice as many values as the previous one. Source: Dettmers 2016,
 * "8-Bit Approximations for Parallelism in Deep Learning".
 */
function dynamicCode(): readonly number[] {
  const values = [0, 1];
  for (let i = 0; i < EXPONENTS; ++i) {
    const borders = linspace(0.1, 1, 2 ** i + 1);
    const scale = fround(10 ** (i - EXPONENTS + 1));
    for (let k = 0; k + 1 < borders.length; ++k) {
      const mean = fround(fround(required(borders[k]) + required(borders[k + 1])) / 2);
      values.push(fround(scale * mean), fround(-scale * mean));
    }
  }
  return values.sort((a, b) => a - b);
}

export const DYNAMIC_CODE = dynamicCode();

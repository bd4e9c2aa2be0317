// Tests the code books of 4-bit weights and of their scales against their papers. These are
// quantiles of a normal distribution (QLoRA, appendix E), and the dynamic tree of 8 bits (Dettmers
// 2016).
import { DYNAMIC_CODE, NF4_CODE } from '../../lib/peft/nf4-linear.js';

const { fround } = Math;

/** The distribution function of the standard normal, by its series. */
function normal(x: number): number {
  let term = x;
  let sum = x;
  for (let k = 1; k < 200; ++k) {
    term *= (x * x) / (2 * k + 1);
    sum += term;
  }
  return 0.5 + (sum * Math.exp((-x * x) / 2)) / Math.sqrt(2 * Math.PI);
}

/** Its inverse for a probability from 0.5 to 0.99, by bisection. */
function quantile(probability: number): number {
  let [low, high] = [0, 3];
  for (let i = 0; i < 100; ++i) {
    const middle = (low + high) / 2;
    if (normal(middle) < probability) low = middle;
    else high = middle;
  }
  return (low + high) / 2;
}

/** n numbers from `start` towards `end`, of n + 1 with the end. */
const steps = (start: number, end: number, n: number): number[] =>
  Array.from({ length: n }, (_, i) => start + ((end - start) * i) / n);

/** The probability of the outermost value, which bitsandbytes and the paper share. */
const OFFSET = 0.9677083;

test('quantiles of a normal distribution', () => {
  expect(quantile(0.5)).toBeCloseTo(0, 12);
  expect(quantile(0.975)).toBeCloseTo(1.959963984540054, 12);
  expect(quantile(0.9)).toBeCloseTo(1.2815515655446004, 12);
});

test('NF4: eight quantiles above 0, seven below, and 0, scaled to 1', () => {
  const above = steps(OFFSET, 0.5, 8).map(quantile);
  const below = steps(OFFSET, 0.5, 7).map((p) => -quantile(p));
  const largest = Math.max(...above);
  const values = [...above, ...below, 0].map((x) => x / largest).sort((a, b) => a - b);
  expect(NF4_CODE).toHaveLength(16);
  for (const [i, value] of values.entries()) {
    // scipy's quantiles in f64, rounded to f32 where the table was made.
    expect([i, Math.abs((NF4_CODE[i] as number) - value) < 2e-7]).toEqual([i, true]);
  }
  expect(NF4_CODE.map(fround)).toEqual(NF4_CODE);
});

test('the dynamic map: per power of ten twice as many means, of both signs, 0 and 1', () => {
  const positive = Array.from({ length: 7 }, (_, power) => {
    const count = 2 ** power;
    const borders = Array.from({ length: count + 1 }, (__, i) => 0.1 + (0.9 * i) / count);
    const scale = 10 ** (power - 6);
    return borders.slice(1).map((border, i) => (scale * (border + (borders[i] as number))) / 2);
  }).flat();
  const values = [...positive, ...positive.map((x) => -x), 0, 1].sort((a, b) => a - b);
  expect(DYNAMIC_CODE).toHaveLength(256);
  expect(new Set(DYNAMIC_CODE).size).toBe(256);
  for (const [i, value] of values.entries()) {
    const error = Math.abs((DYNAMIC_CODE[i] as number) - value);
    expect([i, error <= 2e-7 * Math.abs(value)]).toEqual([i, true]);
  }
});

// Normal numbers between two bounds, on any device: uniform numbers, mapped by the inverse of the
// normal distribution.
import * as kernels from '../runtime/kernels.generated.js';
import { type ElementPart, noGrad, type RandomState, type Tensor, where } from '../tensor/index.js';

/** A normal distribution, and its bounds. */
interface Truncation {
  mean: number;
  stddev: number;
  low: number;
  high: number;
}

/** Source: Giles, "Approximating the erfinv function", 2010: relative error below 1e-6 in f32. */
const CENTRE_COEFFICIENTS = [
  2.81022636e-8, 3.43273939e-7, -3.5233877e-6, -4.39150654e-6, 0.00021858087, -0.00125372503,
  -0.00417768164, 0.246640727, 1.50140941,
];
const TAIL_COEFFICIENTS = [
  -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613,
  0.00943887047, 1.00167406, 2.83297682,
];
/** The last f32 number before 1, beyond which the inverse is infinite. */
const EDGE = 1 - 2 ** -24;

const polynomial = (w: Tensor, [first = 0, ...rest]: readonly number[]): Tensor =>
  rest.reduce<Tensor>((sum, c, i) => (i === 0 ? w.mul(first) : sum.mul(w)).add(c), w);

/** Returns the inverse of the error function of x in (-1, 1), f32. */
function inverseErf(x: Tensor): Tensor {
  const w = x.mul(-1).add(1).mul(x.add(1)).log().mul(-1);
  const isCentral = w.lt(5);
  const centre = polynomial(w.sub(2.5), CENTRE_COEFFICIENTS);
  const tail = polynomial(w.maximum(5).sqrt().sub(3), TAIL_COEFFICIENTS);
  return where(isCentral, centre, tail).mul(x);
}

/**
 * Computes the error function in f64: its series near 0, elsewhere 1 minus a continued fraction.
 */
export function erf(x: number): number {
  const size = Math.abs(x);
  if (size > 6) return Math.sign(x);
  if (size < 2.5) {
    let term = size;
    let sum = size;
    for (let n = 1; Math.abs(term) > 1e-17 * sum; ++n) {
      term *= (-size * size) / n;
      sum += term / (2 * n + 1);
    }
    return (Math.sign(x) * 2 * sum) / Math.sqrt(Math.PI);
  }
  let fraction = size;
  for (let n = 60; n >= 1; --n) fraction = size + n / 2 / fraction;
  return Math.sign(x) * (1 - Math.exp(-size * size) / fraction / Math.sqrt(Math.PI));
}

/**
 * Writes numbers of the truncated distribution into `out`, contiguous f32; a function of `random`
 * and of the position of `out` in the tensor.
 */
export function truncatedNormal(
  out: Tensor,
  at: Truncation,
  random: RandomState & ElementPart,
): void {
  const { mean, stddev, low, high } = at;
  const cumulative = (value: number): number => erf((value - mean) / (stddev * Math.SQRT2));
  kernels.randomUniform({ out, low: cumulative(low), high: cumulative(high), ...random });
  noGrad(() => {
    const inside = out.maximum(-EDGE).minimum(EDGE);
    const values = inverseErf(inside)
      .mul(stddev * Math.SQRT2)
      .add(mean);
    kernels.copy({ in: values.maximum(low).minimum(high), out });
  });
}

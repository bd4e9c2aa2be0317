// Unary functions and their derivatives in f64, and the error function by its series.
import type { UnaryOp } from '../../../lib/runtime/kernels.generated.js';

const { abs, cosh, exp, max, sign, sin, sqrt } = Math;

/** erf by Taylor's series below 2 and by the continued fraction of erfc above. */
export function erf(x: number): number {
  const a = abs(x);
  if (a < 2) {
    let term = a;
    let sum = a;
    for (let k = 1; k < 120; ++k) {
      term *= (-a * a) / k;
      sum += term / (2 * k + 1);
    }
    return (sign(x) * 2 * sum) / sqrt(Math.PI);
  }
  let fraction = 0;
  for (let k = 300; k > 0; --k) fraction = k / 2 / (a + fraction);
  return sign(x) * (1 - exp(-a * a) / (sqrt(Math.PI) * (a + fraction)));
}

const sigmoid = (x: number): number => 1 / (1 + exp(-x));
const root = sqrt(2 / Math.PI);
const inner = (x: number): number => root * (x + 0.044715 * x ** 3);

/** gelu_tanh in the form that keeps its small negative values. */
export const geluTanh = (x: number): number => x * sigmoid(2 * inner(x));

export function geluTanhSlope(x: number): number {
  const s = sigmoid(2 * inner(x));
  return s + x * s * (1 - s) * 2 * root * (1 + 3 * 0.044715 * x * x);
}

interface Unary {
  value(x: number): number;
  slope(x: number): number;
  /** Where inputs are drawn from. */
  low: number;
  high: number;
}

const gauss = (x: number): number => exp((-x * x) / 2) / sqrt(2 * Math.PI);

/** The nearest integer, of two the even one. */
export function roundEven(x: number): number {
  const down = Math.floor(x);
  if (x - down !== 0.5) return Math.round(x);
  return down % 2 === 0 ? down : down + 1;
}

const flat = (): number => 0;

export const unary: Record<UnaryOp, Unary> = {
  neg: { value: (x) => -x, slope: () => -1, low: -3, high: 3 },
  abs: { value: Math.abs, slope: (x) => (x > 0 ? 1 : x < 0 ? -1 : 0), low: -3, high: 3 },
  exp: { value: Math.exp, slope: Math.exp, low: -8, high: 8 },
  log: { value: Math.log, slope: (x) => 1 / x, low: 0.1, high: 50 },
  sqrt: { value: Math.sqrt, slope: (x) => 0.5 / sqrt(x), low: 0.1, high: 50 },
  rsqrt: { value: (x) => 1 / sqrt(x), slope: (x) => -0.5 / (x * sqrt(x)), low: 0.1, high: 50 },
  reciprocal: { value: (x) => 1 / x, slope: (x) => -1 / (x * x), low: 0.1, high: 9 },
  square: { value: (x) => x * x, slope: (x) => 2 * x, low: -9, high: 9 },
  sin: { value: Math.sin, slope: Math.cos, low: -9, high: 9 },
  cos: { value: Math.cos, slope: (x) => -sin(x), low: -9, high: 9 },
  tanh: { value: Math.tanh, slope: (x) => 1 / cosh(x) ** 2, low: -4, high: 4 },
  sigmoid: { value: sigmoid, slope: (x) => sigmoid(x) * sigmoid(-x), low: -9, high: 9 },
  relu: { value: (x) => max(x, 0), slope: (x) => (x > 0 ? 1 : 0), low: -3, high: 3 },
  silu: {
    value: (x) => x * sigmoid(x),
    slope: (x) => sigmoid(x) * (1 + x * sigmoid(-x)),
    low: -9,
    high: 9,
  },
  gelu_tanh: { value: geluTanh, slope: geluTanhSlope, low: -5, high: 5 },
  gelu_erf: {
    value: (x) => 0.5 * x * (1 + erf(x / Math.SQRT2)),
    slope: (x) => 0.5 * (1 + erf(x / Math.SQRT2)) + x * gauss(x),
    low: -5,
    high: 5,
  },
  floor: { value: Math.floor, slope: flat, low: -9, high: 9 },
  ceil: { value: Math.ceil, slope: flat, low: -9, high: 9 },
  round: { value: roundEven, slope: flat, low: -9, high: 9 },
  trunc: { value: Math.trunc, slope: flat, low: -9, high: 9 },
  erf: { value: erf, slope: (x) => 2 * Math.SQRT2 * gauss(Math.SQRT2 * x), low: -4, high: 4 },
  log1p: { value: Math.log1p, slope: (x) => 1 / (1 + x), low: -0.9, high: 50 },
  expm1: { value: Math.expm1, slope: Math.exp, low: -8, high: 8 },
  tan: { value: Math.tan, slope: (x) => 1 + Math.tan(x) ** 2, low: -1.3, high: 1.3 },
};

export const unaryOps = Object.keys(unary) as UnaryOp[];

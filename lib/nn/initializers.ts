// Initial values of parameters: the same numbers whenever and wherever they are written.
import * as kernels from '../runtime/kernels.generated.js';
import { nextRandom, type Tensor } from '../tensor/index.js';

/** Writes initial values into a contiguous f32 tensor on any device; the same every time. */
export type Initializer = (out: Tensor) => void;

/** N(0, stddev^2), from the generator's state of now. */
export function normal(stddev: number): Initializer {
  const { seed, offset } = nextRandom();
  return (out) => kernels.randomNormal({ out, mean: 0, stddev, seed, offset });
}

/** U[-bound, bound), from the generator's state of now. */
export function uniform(bound: number): Initializer {
  const { seed, offset } = nextRandom();
  return (out) => kernels.randomUniform({ out, low: -bound, high: bound, seed, offset });
}

/** All 0. */
export const zeros: Initializer = (out) => kernels.fill({ out, value: 0 });
/** All 1. */
export const ones: Initializer = (out) => kernels.fill({ out, value: 1 });

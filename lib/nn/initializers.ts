// Initial values of parameters: the same numbers at any time and on any device.

import { DsError } from '../errors.js';
import { formatValue } from '../runtime/format-value.js';
import { argumentError, valueError } from '../runtime/input-errors.js';
import * as kernels from '../runtime/kernels.generated.js';
import { namesOf, readOptions } from '../runtime/options.js';
import { requireFinite } from '../runtime/require-number.js';
import { required } from '../runtime/required.js';
import { describe, numel } from '../runtime/view.js';
import { type ElementPart, inOrder, nextRandom, scope, Tensor } from '../tensor/index.js';
import { orthonormalRows } from './orthonormal.js';
import { truncatedNormal } from './truncated-normal.js';

/** The part of a tensor to write. */
export interface InitialPart extends ElementPart {
  /** Shape of the whole tensor. */
  whole: readonly number[];
}

/**
 * Writes initial values into a contiguous f32 tensor on any device. Each call writes the same
 * values, so a rank can create its part at any time. Two tensors of one initializer get equal
 * values.
 */
export interface Initializer {
  (out: Tensor): void;
  /**
   * Writes the values of a part of the tensor: the same numbers. Without it, a rank with a part
   * creates the whole tensor temporarily.
   */
  part?(out: Tensor, at: InitialPart): void;
}

/**
 * @internal Lets `init` write `out`. Throws DS_ARGUMENT if it returned a new tensor instead,
 * because `out` would keep uninitialized memory.
 */
export function writeInitial(init: Initializer, out: Tensor): void {
  const returned: unknown = init(out);
  if (!(returned instanceof Tensor) || returned.buffer === out.buffer) return;
  throw argumentError(
    'Parameter',
    'an initializer that writes into the tensor it is given',
    `an initializer that returns another tensor, ${describe(returned)}`,
    'Write (out) => out.copy_(values).',
  );
}

const CONSTANTS_HINT = 'nn.init.zeros and nn.init.ones are initializers: pass them without ().';

/**
 * @internal Returns an initializer that can also write a part. `body` writes whole tensors and
 * parts.
 */
export function byRange(body: (out: Tensor, at: InitialPart) => void): Initializer {
  const whole: Initializer = (out) => {
    if (!(out instanceof Tensor))
      throw valueError('nn.init', 'a tensor to write into', out, CONSTANTS_HINT);
    body(out, { whole: out.shape, ...inOrder });
  };
  whole.part = body;
  return whole;
}

/** Returns the indices of a part, in the format of random ops. */
const partOf = ({ first, row, stride }: ElementPart): ElementPart => ({ first, row, stride });

/**
 * Returns an initializer: N(mean, stddev^2), from the current state of the generator. Throws
 * DS_ARGUMENT unless `stddev` is at least 0 and `mean` is finite.
 */
export function normal(stddev: number, mean = 0): Initializer {
  requireFinite('init.normal stddev', stddev, 0);
  requireFinite('init.normal mean', mean);
  const { seed, offset } = nextRandom();
  return byRange((out, at) =>
    kernels.randomNormal({ out, mean, stddev, seed, offset, ...partOf(at) }),
  );
}

/**
 * Returns an initializer: U[-bound, bound), or U[low, high) of two numbers, from the current state
 * of the generator. Throws DS_ARGUMENT unless the bounds are finite and rising.
 */
export function uniform(boundOrLow: number, high?: number): Initializer {
  const low = requireFinite('init.uniform', high === undefined ? -boundOrLow : boundOrLow);
  const end = requireFinite('init.uniform high', high ?? boundOrLow, low);
  const { seed, offset } = nextRandom();
  return byRange((out, at) =>
    kernels.randomUniform({ out, low, high: end, seed, offset, ...partOf(at) }),
  );
}

/**
 * Returns an initializer: every element is `value`. Throws DS_ARGUMENT unless `value` is finite.
 */
export function constant(value: number): Initializer {
  requireFinite('init.constant', value);
  return byRange((out) => kernels.fill({ out, value }));
}

/** An initializer: every element is 0. */
export const zeros: Initializer = byRange((out) => kernels.fill({ out, value: 0 }));
/** An initializer: every element is 1. */
export const ones: Initializer = byRange((out) => kernels.fill({ out, value: 1 }));

/**
 * Returns fan-in and fan-out of a weight [out, in, ..]: the first dims times the product of the
 * other dims. Throws DS_SHAPE for fewer than two dims.
 */
function fansOf(op: string, shape: readonly number[]): { fanIn: number; fanOut: number } {
  const [rows = 0, columns = 0, ...field] = shape;
  if (shape.length >= 2) return { fanIn: columns * numel(field), fanOut: rows * numel(field) };
  throw new DsError({
    code: 'DS_SHAPE',
    op,
    expected: 'a weight of two dims or more: [out, in, ..]',
    got: describe({ dtype: 'f32', shape }),
    hint: 'Biases start as init.zeros.',
  });
}

/** Returns an initializer with mean 0 and the standard deviation `spread`(shape). */
function createScaled(
  draw: 'uniform' | 'normal',
  spread: (shape: readonly number[]) => number,
): Initializer {
  const { seed, offset } = nextRandom();
  return byRange((out, { whole, ...at }) => {
    const stddev = spread(whole);
    const bound = Math.sqrt(3) * stddev;
    if (draw === 'normal') kernels.randomNormal({ out, mean: 0, stddev, seed, offset, ...at });
    else kernels.randomUniform({ out, low: -bound, high: bound, seed, offset, ...at });
  });
}

function xavier(draw: 'uniform' | 'normal', gain: number): Initializer {
  requireFinite('init.xavier gain', gain, 0);
  return createScaled(draw, (shape) => {
    const { fanIn, fanOut } = fansOf('init.xavier', shape);
    return gain * Math.sqrt(2 / Math.max(1, fanIn + fanOut));
  });
}

/**
 * Returns an initializer: U[-b, b) with b = gain sqrt(6 / (inputs + outputs)); for weights [out,
 * in, ..]. Source: Glorot & Bengio 2010.
 */
export function xavierUniform(gain = 1): Initializer {
  return xavier('uniform', gain);
}

/**
 * Returns an initializer: N(0, gain^2 2 / (inputs + outputs)); for weights [out, in, ..]. Source:
 * Glorot & Bengio 2010.
 */
export function xavierNormal(gain = 1): Initializer {
  return xavier('normal', gain);
}

/** The activation after a layer, for calculateGain(). */
export type Nonlinearity = 'linear' | 'sigmoid' | 'tanh' | 'relu' | 'leakyRelu' | 'selu';

/**
 * Returns the scale of weights before `nonlinearity`; `slope` is leaky ReLU's below 0. Throws
 * DS_ARGUMENT for an unknown nonlinearity.
 */
export function calculateGain(nonlinearity: Nonlinearity, slope = 0.01): number {
  const gains: Record<Nonlinearity, number> = {
    linear: 1,
    sigmoid: 1,
    tanh: 5 / 3,
    relu: Math.SQRT2,
    leakyRelu: Math.sqrt(2 / (1 + slope ** 2)),
    selu: 3 / 4,
  };
  if (Object.hasOwn(gains, nonlinearity)) return gains[nonlinearity];
  const expected = `one of ${Object.keys(gains).join(', ')}`;
  const got = formatValue(nonlinearity);
  throw argumentError('init.calculateGain', expected, got);
}

/** Options of kaimingUniform() and kaimingNormal(). */
export interface KaimingOptions {
  /** Leaky ReLU's slope below 0. Default: 0. */
  a?: number;
  /**
   * Whether to keep the variance of outputs ("fanIn") or of gradients ("fanOut"). Default: "fanIn".
   */
  mode?: 'fanIn' | 'fanOut';
  /** Activation after the layer, which determines the gain. Default: "leakyRelu". */
  nonlinearity?: Nonlinearity;
}

function kaiming(draw: 'uniform' | 'normal', given: KaimingOptions): Initializer {
  const options = readOptions('init.kaiming', given, namesOf.KaimingOptions);
  const { a = 0, mode = 'fanIn', nonlinearity = 'leakyRelu' } = options;
  const gain = calculateGain(nonlinearity, requireFinite('init.kaiming a', a));
  if (mode !== 'fanIn' && mode !== 'fanOut') {
    const got = formatValue(mode);
    const expected = '"fanIn" or "fanOut"';
    throw argumentError('init.kaiming mode', expected, got);
  }
  return createScaled(
    draw,
    (shape) => gain / Math.sqrt(Math.max(1, fansOf('init.kaiming', shape)[mode])),
  );
}

/**
 * Returns an initializer: U[-b, b) with b = gain sqrt(3 / fan); for weights [out, in, ..]. Source:
 * He et al. 2015.
 */
export function kaimingUniform(options: KaimingOptions = {}): Initializer {
  return kaiming('uniform', options);
}

/**
 * Returns an initializer: N(0, gain^2 / fan); for weights [out, in, ..]. Source: He et al. 2015.
 */
export function kaimingNormal(options: KaimingOptions = {}): Initializer {
  return kaiming('normal', options);
}

/** Options of truncNormal(). */
export interface TruncNormalOptions {
  /** Mean. Default: 0. */
  mean?: number;
  /** Standard deviation. Default: 1. */
  stddev?: number;
  /** The smallest value, not a number of deviations. Default: -2. */
  low?: number;
  /** The greatest value. Default: 2. */
  high?: number;
}

/**
 * Returns an initializer: N(mean, stddev^2) between two values. Throws DS_ARGUMENT if a number is
 * not finite, `stddev` is 0, or `high` is below `low`. Source: torch.nn.init.trunc_normal_.
 */
export function truncNormal(given: TruncNormalOptions = {}): Initializer {
  const options = readOptions('init.truncNormal', given, namesOf.TruncNormalOptions);
  const mean = requireFinite('init.truncNormal mean', options.mean ?? 0);
  const stddev = requireFinite('init.truncNormal stddev', options.stddev ?? 1, Number.MIN_VALUE);
  const low = requireFinite('init.truncNormal low', options.low ?? -2);
  const high = requireFinite('init.truncNormal high', options.high ?? 2, low);
  const random = nextRandom();
  return byRange((out, { whole: _, ...at }) =>
    scope(() => truncatedNormal(out, { mean, stddev, low, high }, { ...random, ...at })),
  );
}

/**
 * Returns an initializer: orthogonal rows, or columns if they are fewer, of length `gain`; dims
 * after the first count as one. Computed on one thread of the host in f64: some seconds for 1000 x
 * 1000, with the cube of the size. Throws DS_ARGUMENT unless `gain` is finite. Source: Saxe et al.
 * 2014.
 */
export function orthogonal(gain = 1): Initializer {
  requireFinite('init.orthogonal gain', gain);
  const random = nextRandom();
  return (out) => {
    if (out.ndim < 2) fansOf('init.orthogonal', out.shape);
    if (out.numel === 0) return;
    const rows = required(out.shape[0]);
    const values = orthonormalRows(rows, out.numel / rows, random).map((value) => value * gain);
    scope(() => {
      const made = Tensor.from(Float32Array.from(values), { shape: out.shape, device: out.device });
      kernels.copy({ in: made, out });
    });
  };
}

// The ops as methods, x.add(y).relu() for relu(add(x, y)), with their shapes and errors.
import { DsError } from '../errors.js';
import type { Device } from '../runtime/device.js';
import type { DType } from '../runtime/dtype.js';
import { phrase } from '../runtime/phrase.js';
import { backward } from './autograd.js';
import * as ops from './ops/index.js';
import { Tensor } from './tensor.js';

/**
 * Functions of a tensor that are its methods too, and the most arguments that each takes beside it.
 * Their types and texts are those of the functions.
 */
const methods = {
  ...{ add: 1, sub: 1, mul: 1, div: 1, pow: 1, maximum: 1, minimum: 1 },
  ...{ clamp: 2, maskedFill: 2, logicalAnd: 1, logicalOr: 1, logicalXor: 1, logicalNot: 0 },
  ...{ isnan: 0, isinf: 0, isfinite: 0, sign: 0, reciprocal: 0, atan2: 1 },
  ...{ floor: 0, ceil: 0, round: 0, trunc: 0, erf: 0, log1p: 0, expm1: 0, tan: 0 },
  ...{ eq: 1, ne: 1, lt: 1, le: 1, gt: 1, ge: 1 },
  ...{ neg: 0, abs: 0, exp: 0, log: 0, sqrt: 0, rsqrt: 0, square: 0, sin: 0, cos: 0, tanh: 0 },
  ...{ sigmoid: 0, relu: 0, silu: 0, gelu: 1 },
  ...{ cumsum: 1, cumprod: 1, sort: 1, argsort: 1, topk: 2, multinomial: 2 },
  ...{ scatter: 3, scatterAdd: 3 },
  ...{ sum: 1, mean: 1, prod: 1, max: 1, min: 1, argmax: 1, softmax: 1, logSoftmax: 1 },
  ...{ any: 1, all: 1, countNonzero: 1, var: 1, std: 1, norm: 2, logsumexp: 1, argmin: 1 },
  ...{ matmul: 1, bmm: 1, dot: 1, outer: 1, gather: 2, indexSelect: 2 },
  ...{ clone: 0, repeat: Infinity, repeatInterleave: 2, flip: 1, roll: 2, tril: 1, triu: 1 },
  ...{ pad: 2, diagonal: 3, movedim: 2, unflatten: 2, chunk: 2, unbind: 1 },
  ...{ add_: 1, sub_: 1, mul_: 1, div_: 1, neg_: 0, exp_: 0, sqrt_: 0, relu_: 0, clamp_: 2 },
  ...{ fill_: 1, zero_: 0, copy_: 1, maskedFill_: 2, normal_: 2, uniform_: 2 },
  ...{ reshape: Infinity, view: Infinity, permute: Infinity, expand: Infinity },
  ...{ flatten: 2, transpose: 2, squeeze: 1, unsqueeze: 1, slice: 4, narrow: 3, select: 2 },
  ...{ split: 2, contiguous: 0 },
} as const;

type Name = keyof typeof methods;

/** All parameters but the first. */
type Rest<Parameters> = Parameters extends readonly [unknown, ...infer Others] ? Others : never;

type Functions = Pick<typeof ops, Name>;
type Methods = {
  [Name in keyof Functions]: (
    ...rest: Rest<Parameters<Functions[Name]>>
  ) => ReturnType<Functions[Name]>;
};

declare module './tensor.js' {
  interface Tensor extends Methods {
    /** As the function of this name. */
    to(...targets: (DType | Device | string)[]): Tensor;

    /**
     * Adds the gradient of this tensor to every leaf below it; `seed` defaults to 1 for a scalar.
     */
    backward(seed?: Tensor | null): void;
  }
}

type Op = (x: Tensor, ...rest: unknown[]) => unknown;
const table = ops as unknown as Record<Name, Op>;

/** Those whose last argument is options or dims. */
const REDUCTIONS: readonly string[] = [
  'sum',
  'mean',
  'max',
  'min',
  'prod',
  'any',
  'all',
  'var',
  'std',
];

/** JavaScript drops arguments that nobody reads: sum(1, true) would be sum(1). */
function surplus(name: Name, most: number, given: readonly unknown[]): DsError {
  const takesOptions = REDUCTIONS.includes(name);
  return new DsError({
    code: 'DS_ARGUMENT',
    op: name,
    expected: most === 0 ? 'no arguments' : `at most ${most} argument${most > 1 ? 's' : ''}`,
    got: `${given.length}: ${given.map(phrase).join(', ')}`,
    hint: takesOptions ? `Name them: ${name}({ dims: 1, keepDim: true }).` : '',
  });
}

for (const [name, most] of Object.entries(methods) as [Name, number][]) {
  const op = table[name];
  Object.defineProperty(Tensor.prototype, name, {
    configurable: true,
    writable: true,
    value(this: Tensor, ...given: unknown[]) {
      if (given.length > most && given.slice(most).some((value) => value !== undefined)) {
        throw surplus(name, most, given);
      }
      return op(this, ...given);
    },
  });
}

Tensor.prototype.to = function (this: Tensor, ...targets: (DType | Device | string)[]): Tensor {
  return ops.to(this, ...targets);
};

Tensor.prototype.backward = function (this: Tensor, seed: Tensor | null = null): void {
  backward(this, [seed]);
};

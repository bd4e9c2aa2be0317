// The ops as methods, x.add(y).relu() for relu(add(x, y)), with their shapes and errors.
import { DsError } from '../errors.js';
import type { Device } from '../runtime/device.js';
import type { DType } from '../runtime/dtype.js';
import { phrase } from '../runtime/phrase.js';
import { backward } from './autograd.js';
import * as ops from './ops/index.js';
import type { Operand } from './ops/operands.js';
import type { Reduction } from './ops/reduce.js';
import type { Sizes } from './ops/views.js';
import { Tensor } from './tensor.js';

declare module './tensor.js' {
  interface Tensor {
    add(other: Operand): Tensor;
    sub(other: Operand): Tensor;
    mul(other: Operand): Tensor;
    div(other: Operand): Tensor;
    pow(exponent: Operand): Tensor;
    maximum(other: Operand): Tensor;
    minimum(other: Operand): Tensor;
    eq(other: Operand): Tensor;
    ne(other: Operand): Tensor;
    lt(other: Operand): Tensor;
    le(other: Operand): Tensor;
    gt(other: Operand): Tensor;
    ge(other: Operand): Tensor;

    neg(): Tensor;
    abs(): Tensor;
    exp(): Tensor;
    log(): Tensor;
    sqrt(): Tensor;
    rsqrt(): Tensor;
    square(): Tensor;
    sin(): Tensor;
    cos(): Tensor;
    tanh(): Tensor;
    sigmoid(): Tensor;
    relu(): Tensor;
    silu(): Tensor;
    gelu(approximate?: 'tanh' | 'none'): Tensor;

    sum(options?: Reduction): Tensor;
    mean(options?: Reduction): Tensor;
    max(options?: Reduction): Tensor;
    min(options?: Reduction): Tensor;
    argmax(dim?: number): Tensor;
    softmax(dim?: number): Tensor;
    logSoftmax(dim?: number): Tensor;
    matmul(other: Tensor): Tensor;
    gather(dim: number, index: Tensor): Tensor;

    reshape(...shape: Sizes): Tensor;
    view(...shape: Sizes): Tensor;
    flatten(from?: number, to?: number): Tensor;
    transpose(first?: number, second?: number): Tensor;
    permute(...order: Sizes): Tensor;
    expand(...shape: Sizes): Tensor;
    squeeze(dim?: number): Tensor;
    unsqueeze(dim: number): Tensor;
    slice(dim: number, start?: number, end?: number, step?: number): Tensor;
    narrow(dim: number, start: number, length: number): Tensor;
    select(dim: number, index: number): Tensor;
    split(sizes: number | readonly number[], dim?: number): Tensor[];
    contiguous(): Tensor;
    to(...targets: (DType | Device | string)[]): Tensor;

    /**
     * Adds the gradient of this tensor to every leaf below it; `seed` defaults to 1 for a scalar.
     */
    backward(seed?: Tensor | null): void;
  }
}

/** Those whose arguments after the tensor are the method's arguments, and the most that each takes. */
const methods = {
  ...{ add: 1, sub: 1, mul: 1, div: 1, pow: 1, maximum: 1, minimum: 1 },
  ...{ eq: 1, ne: 1, lt: 1, le: 1, gt: 1, ge: 1 },
  ...{ neg: 0, abs: 0, exp: 0, log: 0, sqrt: 0, rsqrt: 0, square: 0, sin: 0, cos: 0, tanh: 0 },
  ...{ sigmoid: 0, relu: 0, silu: 0, gelu: 1 },
  ...{ sum: 1, mean: 1, max: 1, min: 1, argmax: 1, softmax: 1, logSoftmax: 1 },
  ...{ matmul: 1, gather: 2 },
  ...{ reshape: Infinity, view: Infinity, permute: Infinity, expand: Infinity },
  ...{ flatten: 2, transpose: 2, squeeze: 1, unsqueeze: 1, slice: 4, narrow: 3, select: 2 },
  ...{ split: 2, contiguous: 0 },
} as const;

type Name = keyof typeof methods;
type Op = (x: Tensor, ...rest: unknown[]) => unknown;
const table = ops as unknown as Record<Name, Op>;

/** JavaScript drops arguments that nobody reads: sum(1, true) would be sum(1). */
function surplus(name: Name, most: number, given: readonly unknown[]): DsError {
  const takesOptions = ['sum', 'mean', 'max', 'min'].includes(name);
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

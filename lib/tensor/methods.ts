// The ops as methods, x.add(y).relu() for relu(add(x, y)), with their shapes and errors.
import type { Device } from '../runtime/device.js';
import type { DType } from '../runtime/dtype.js';
import { backward } from './autograd.js';
import * as ops from './ops/index.js';
import type { ReduceOptions } from './ops/reduce.js';
import { Tensor } from './tensor.js';

declare module './tensor.js' {
  interface Tensor {
    add(other: Tensor | number): Tensor;
    sub(other: Tensor | number): Tensor;
    mul(other: Tensor | number): Tensor;
    div(other: Tensor | number): Tensor;
    pow(exponent: Tensor | number): Tensor;
    maximum(other: Tensor | number): Tensor;
    minimum(other: Tensor | number): Tensor;
    eq(other: Tensor | number): Tensor;
    ne(other: Tensor | number): Tensor;
    lt(other: Tensor | number): Tensor;
    le(other: Tensor | number): Tensor;
    gt(other: Tensor | number): Tensor;
    ge(other: Tensor | number): Tensor;

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

    sum(options?: ReduceOptions): Tensor;
    mean(options?: ReduceOptions): Tensor;
    max(options?: ReduceOptions): Tensor;
    min(options?: ReduceOptions): Tensor;
    argmax(dim?: number): Tensor;
    softmax(dim?: number): Tensor;
    logSoftmax(dim?: number): Tensor;
    matmul(other: Tensor): Tensor;
    gather(dim: number, index: Tensor): Tensor;

    reshape(shape: readonly number[]): Tensor;
    view(shape: readonly number[]): Tensor;
    flatten(from?: number, to?: number): Tensor;
    transpose(first?: number, second?: number): Tensor;
    permute(order: readonly number[]): Tensor;
    expand(shape: readonly number[]): Tensor;
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

/** Those whose arguments after the tensor are the method's arguments. */
const methods = [
  'add',
  'sub',
  'mul',
  'div',
  'pow',
  'maximum',
  'minimum',
  'eq',
  'ne',
  'lt',
  'le',
  'gt',
  'ge',
  'neg',
  'abs',
  'exp',
  'log',
  'sqrt',
  'rsqrt',
  'square',
  'sin',
  'cos',
  'tanh',
  'sigmoid',
  'relu',
  'silu',
  'gelu',
  'sum',
  'mean',
  'max',
  'min',
  'argmax',
  'softmax',
  'logSoftmax',
  'matmul',
  'gather',
  'reshape',
  'view',
  'flatten',
  'transpose',
  'permute',
  'expand',
  'squeeze',
  'unsqueeze',
  'slice',
  'narrow',
  'select',
  'split',
  'contiguous',
] as const;

type Op = (x: Tensor, a?: unknown, b?: unknown, c?: unknown, d?: unknown) => unknown;
const table = ops as unknown as Record<(typeof methods)[number], Op>;

for (const name of methods) {
  const op = table[name];
  Object.defineProperty(Tensor.prototype, name, {
    configurable: true,
    writable: true,
    value(this: Tensor, a?: unknown, b?: unknown, c?: unknown, d?: unknown) {
      return op(this, a, b, c, d);
    },
  });
}

Tensor.prototype.to = function (this: Tensor, ...targets: (DType | Device | string)[]): Tensor {
  return ops.to(this, ...targets);
};

Tensor.prototype.backward = function (this: Tensor, seed: Tensor | null = null): void {
  backward(this, [seed]);
};

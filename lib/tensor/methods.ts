// The ops as methods, x.add(y).relu() for relu(add(x, y)), with their shapes and errors.
import { DsError } from '../errors.js';
import type { Device } from '../runtime/device.js';
import type { DType } from '../runtime/dtype.js';
import { phrase } from '../runtime/phrase.js';
import { backward } from './autograd.js';
import * as ops from './ops/index.js';
import type { ClampOptions } from './ops/logic.js';
import type { Operand } from './ops/operands.js';
import type { Reduction } from './ops/reduce.js';
import type { Sizes } from './ops/shapes.js';
import type { Spread } from './ops/statistics.js';
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
    clamp(min: Operand | null, max?: Operand | null): Tensor;
    clamp(limits: ClampOptions): Tensor;
    maskedFill(mask: Tensor, value: Operand): Tensor;
    eq(other: Operand): Tensor;
    ne(other: Operand): Tensor;
    lt(other: Operand): Tensor;
    le(other: Operand): Tensor;
    gt(other: Operand): Tensor;
    ge(other: Operand): Tensor;
    logicalAnd(other: Tensor): Tensor;
    logicalOr(other: Tensor): Tensor;
    logicalXor(other: Tensor): Tensor;
    logicalNot(): Tensor;
    isnan(): Tensor;
    isinf(): Tensor;
    isfinite(): Tensor;

    neg(): Tensor;
    abs(): Tensor;
    exp(): Tensor;
    log(): Tensor;
    sqrt(): Tensor;
    rsqrt(): Tensor;
    reciprocal(): Tensor;
    square(): Tensor;
    sign(): Tensor;
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
    any(options?: Reduction): Tensor;
    all(options?: Reduction): Tensor;
    countNonzero(options?: Reduction): Tensor;
    var(options?: Spread): Tensor;
    std(options?: Spread): Tensor;
    norm(p?: number | 'fro', options?: Reduction): Tensor;
    logsumexp(options?: Reduction): Tensor;
    argmax(dim?: number): Tensor;
    argmin(dim?: number): Tensor;
    softmax(dim?: number): Tensor;
    logSoftmax(dim?: number): Tensor;
    matmul(other: Tensor): Tensor;
    bmm(other: Tensor): Tensor;
    dot(other: Tensor): Tensor;
    outer(other: Tensor): Tensor;
    gather(dim: number, index: Tensor): Tensor;
    indexSelect(dim: number, index: Tensor): Tensor;

    clone(): Tensor;
    repeat(...repeats: Sizes): Tensor;
    repeatInterleave(count: number, dim?: number): Tensor;
    flip(dims?: number | readonly number[]): Tensor;
    roll(shifts: number | readonly number[], dims?: number | readonly number[]): Tensor;
    tril(diagonal?: number): Tensor;
    triu(diagonal?: number): Tensor;
    pad(padding: readonly number[], value?: number): Tensor;
    diagonal(offset?: number, first?: number, second?: number): Tensor;
    movedim(source: number | readonly number[], destination: number | readonly number[]): Tensor;
    unflatten(dim: number, sizes: readonly number[]): Tensor;
    chunk(count: number, dim?: number): Tensor[];
    unbind(dim?: number): Tensor[];

    /** These change the tensor itself and return it; see docs/tensors.md. */
    add_(other: Operand): Tensor;
    sub_(other: Operand): Tensor;
    mul_(other: Operand): Tensor;
    div_(other: Operand): Tensor;
    neg_(): Tensor;
    exp_(): Tensor;
    sqrt_(): Tensor;
    relu_(): Tensor;
    clamp_(min: Operand | null, max?: Operand | null): Tensor;
    clamp_(limits: ClampOptions): Tensor;
    fill_(value: number): Tensor;
    zero_(): Tensor;
    copy_(source: Tensor): Tensor;
    maskedFill_(mask: Tensor, value: number): Tensor;
    normal_(mean?: number, stddev?: number): Tensor;
    uniform_(low?: number, high?: number): Tensor;

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
  ...{ clamp: 2, maskedFill: 2, logicalAnd: 1, logicalOr: 1, logicalXor: 1, logicalNot: 0 },
  ...{ isnan: 0, isinf: 0, isfinite: 0, sign: 0, reciprocal: 0 },
  ...{ eq: 1, ne: 1, lt: 1, le: 1, gt: 1, ge: 1 },
  ...{ neg: 0, abs: 0, exp: 0, log: 0, sqrt: 0, rsqrt: 0, square: 0, sin: 0, cos: 0, tanh: 0 },
  ...{ sigmoid: 0, relu: 0, silu: 0, gelu: 1 },
  ...{ sum: 1, mean: 1, max: 1, min: 1, argmax: 1, softmax: 1, logSoftmax: 1 },
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
type Op = (x: Tensor, ...rest: unknown[]) => unknown;
const table = ops as unknown as Record<Name, Op>;

/** Those whose last argument is options or dims. */
const REDUCTIONS: readonly string[] = ['sum', 'mean', 'max', 'min', 'any', 'all', 'var', 'std'];

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

// A tensor as an op's operand: memory, dtype, offset, shape and strides.

import type { Buffer } from './buffer.js';
import type { DType } from './dtype.js';
import { describe as describeView } from './format-value.js';
import { required } from './required.js';

/** Elements in memory, as kernels read them; every Tensor is a View. */
export interface View {
  /** @internal */
  readonly buffer: Buffer;
  /** Type of its elements. */
  readonly dtype: DType;
  /** Elements from the buffer's start. */
  readonly offset: number;
  /** Size of each dim. */
  readonly shape: readonly number[];
  /** Distance between neighbours in each dim, in elements; 0 for a broadcast dim. */
  readonly strides: readonly number[];
}

/** Returns "[2, 3] bf16", for messages. */
export function describe(view: { shape: readonly number[]; dtype: string }): string {
  return describeView(view);
}

/** Returns the number of elements of a shape. */
export function numel(shape: readonly number[]): number {
  let n = 1;
  for (let d = 0; d < shape.length; ++d) n *= required(shape[d]);
  return n;
}

/** Returns the row-major strides of `shape`. */
export function contiguousStrides(shape: readonly number[]): number[] {
  const strides = new Array<number>(shape.length);
  let step = 1;
  for (let d = shape.length - 1; d >= 0; --d) {
    strides[d] = step;
    step *= required(shape[d]);
  }
  return strides;
}

/** Returns whether elements lie in row-major order without gaps. */
export function isContiguous(view: View): boolean {
  let expected = 1;
  for (let d = view.shape.length - 1; d >= 0; --d) {
    const size = required(view.shape[d]);
    if (size !== 1 && view.strides[d] !== expected) return false;
    expected *= size;
  }
  return true;
}

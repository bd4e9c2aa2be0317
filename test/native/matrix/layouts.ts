// The dtypes, shapes and memory layouts of the matrix.
import type { DType } from '../../../lib/runtime/dtype.js';
import { contiguousStrides } from '../../../lib/runtime/view.js';
import type { Layout } from './harness.js';

export const floating: readonly DType[] = ['f32', 'f16', 'bf16', 'f64'];
export const integers: readonly DType[] = ['i32', 'i64', 'u8'];
export const numeric: readonly DType[] = [...floating, ...integers];
export const everyDType: readonly DType[] = [...numeric, 'bool'];

/** Around the widths of vectors, warps and blocks, and 0. */
export const oddSizes = [0, 1, 3, 17, 33, 127, 129, 255, 257, 1029] as const;

export const aligned: Layout = { lead: 16 };
/** Starts at an odd element. */
export const unaligned: Layout = { lead: 5 };

/** Row-major with `gap` unused elements after every row. */
export function paddedLayout(shape: readonly number[], gap = 3, lead = 5): Layout {
  const wide = [...shape];
  wide[wide.length - 1] = wide.at(-1)! + gap;
  return { lead, strides: contiguousStrides(wide) };
}

/** Column-major: the first dim is dense. */
export function reversedLayout(shape: readonly number[], lead = 16): Layout {
  return { lead, strides: contiguousStrides([...shape].reverse()).reverse() };
}

/** Every second element. */
export function sparse(shape: readonly number[], lead = 5): Layout {
  return { lead, strides: contiguousStrides(shape).map((stride) => 2 * stride) };
}

/** Row-major, but the dims in `dims` are repeated with stride 0. */
export function broadcast(shape: readonly number[], dims: readonly number[], lead = 16): Layout {
  const strides = contiguousStrides(shape.map((size, d) => (dims.includes(d) ? 1 : size)));
  return { lead, strides: strides.map((stride, d) => (dims.includes(d) ? 0 : stride)) };
}

/** Dims in the order `order` of memory, the last one dense. */
export function permutedLayout(
  shape: readonly number[],
  order: readonly number[],
  lead = 16,
): Layout {
  const dense = contiguousStrides(order.map((d) => shape[d]!));
  const strides = new Array<number>(shape.length);
  order.forEach((d, at) => {
    strides[d] = dense[at]!;
  });
  return { lead, strides };
}

export function indexOf(shape: readonly number[], flat: number): number[] {
  const index = new Array<number>(shape.length);
  let rest = flat;
  for (let d = shape.length - 1; d >= 0; --d) {
    index[d] = rest % shape[d]!;
    rest = (rest - index[d]!) / shape[d]!;
  }
  return index;
}

/** The row-major position of `index` in `shape`. */
export function flatOf(shape: readonly number[], index: readonly number[]): number {
  return index.reduce((flat, k, d) => flat * shape[d]! + k, 0);
}

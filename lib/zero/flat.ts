// Flat tensors: their contiguous parts as tensors, and zeros in them.
import * as kernels from '../runtime/kernels.generated.js';
import { held, type Tensor } from '../tensor/index.js';
import type { Range } from './layout.js';

/** Contiguous elements of a flat tensor as a tensor of `shape`; the caller releases it. */
export function sliceFlat(
  flat: Tensor,
  { offset, numel }: Range,
  shape: readonly number[] = [numel],
): Tensor {
  return held(() => flat.alias(shape, undefined, flat.offset + offset));
}

/** Enqueues zeros on the compute stream. */
export function zeroRange(flat: Tensor, range: Range): void {
  const view = sliceFlat(flat, range);
  kernels.fill({ out: view, value: 0 });
  view.release();
}

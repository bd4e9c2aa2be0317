// Operations on flat tensors: slices, zeros, copies.
import { dtypeSize } from '../runtime/dtype.js';
import * as kernels from '../runtime/kernels.generated.js';
import type { Stream } from '../runtime/stream.js';
import { held } from './scope.js';
import type { Tensor } from './tensor.js';

/** A half-open range [offset, offset + numel) of elements. */
export interface Range {
  offset: number;
  numel: number;
}

/** Returns contiguous elements of a flat tensor as a tensor of `shape`. The caller releases it. */
export function sliceFlat(
  flat: Tensor,
  { offset, numel }: Range,
  shape: readonly number[] = [numel],
): Tensor {
  return held(() => flat.alias(shape, undefined, flat.offset + offset));
}

/** Writes zeros to `range` of a flat tensor, on the compute stream. */
export function zeroRange(flat: Tensor, range: Range): void {
  const view = sliceFlat(flat, range);
  kernels.fill({ out: view, value: 0 });
  view.release();
}

/**
 * Copies `range` of `from` to the start of `target` in `to`, on `stream`. Both tensors are
 * contiguous and have one dtype.
 */
export function copyFlat(
  to: Tensor,
  target: Range,
  from: Tensor,
  range: Range,
  stream: Stream,
): void {
  const size = dtypeSize(to.dtype);
  to.buffer.copyFrom(
    from.buffer,
    {
      to: (to.offset + target.offset) * size,
      from: (from.offset + range.offset) * size,
      bytes: range.numel * size,
    },
    stream,
  );
}

/** Copies all elements of `from` to `to`: see copyFlat(). */
export function copyAll(to: Tensor, from: Tensor, stream: Stream): void {
  const all = { offset: 0, numel: to.numel };
  copyFlat(to, all, from, all, stream);
}

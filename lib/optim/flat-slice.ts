// Helpers for update rules: slices of flat tensors, and a check for whole parameters.
import { DsError } from '../errors.js';
import { numel, type View } from '../runtime/view.js';
import type { Tensor } from '../tensor/index.js';
import type { UpdateTensors } from './optimizer.js';

/** Returns a view of elements of a flat tensor. The view holds no reference to the memory. */
export function flatSlice(tensor: Tensor, range: { offset: number; numel: number }): View {
  const { buffer, dtype, offset } = tensor;
  return { buffer, dtype, offset: offset + range.offset, shape: [range.numel], strides: [1] };
}

/**
 * Throws DS_CONFIG if the range contains a part of a parameter. For rules that need whole
 * parameters.
 */
export function requireWhole(optimizer: string, { places }: UpdateTensors): void {
  const cut = places.find((place) => place.numel < numel(place.shape));
  if (!cut) return;
  throw new DsError({
    code: 'DS_CONFIG',
    op: optimizer,
    expected: 'whole parameters in every range of update()',
    got: `${cut.numel} of the ${numel(cut.shape)} elements of ${cut.name}`,
    hint: 'If ranks hold parts of parameters, call measure() first and exchange the sums, as the engine does.',
  });
}

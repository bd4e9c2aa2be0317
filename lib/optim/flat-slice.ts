// Slices of flat tensors for the parameters of a range.
import { DsError } from '../errors.js';
import { numel, type View } from '../runtime/view.js';
import type { Tensor } from '../tensor/index.js';
import type { UpdateTensors } from './optimizer.js';

/** Returns elements of a flat tensor without a new reference. */
export function flatSlice(tensor: Tensor, range: { offset: number; numel: number }): View {
  const { buffer, dtype, offset } = tensor;
  return { buffer, dtype, offset: offset + range.offset, shape: [range.numel], strides: [1] };
}

/**
 * Throws DS_CONFIG for a range with part of a parameter, if the rule of `optimizer` needs whole
 * ones.
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

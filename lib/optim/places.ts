// The parameters of a range one by one: what flat tensors have of each, and whether it is all.
import { DsError } from '../errors.js';
import { numel, type View } from '../runtime/view.js';
import type { Tensor } from '../tensor/index.js';
import type { UpdateTensors } from './optimizer.js';

/** Elements of a flat tensor, borrowed. */
export function part(tensor: Tensor, place: { offset: number; numel: number }): View {
  const { buffer, dtype, offset } = tensor;
  return { buffer, dtype, offset: offset + place.offset, shape: [place.numel], strides: [1] };
}

/**
 * Throws DS_CONFIG for a range that holds part of a parameter, where the rule of `optimizer` needs
 * all of it.
 */
export function requireWhole(optimizer: string, { places }: UpdateTensors): void {
  const cut = places.find((place) => place.numel < numel(place.shape));
  if (!cut) return;
  throw new DsError({
    code: 'DS_CONFIG',
    op: optimizer,
    expected: 'whole parameters in every range that update() gets',
    got: `${cut.numel} of the ${numel(cut.shape)} elements of ${cut.name}`,
    hint: 'Where ranks hold parts of parameters, call measure() first and share the sums, as the engine does.',
  });
}

// Records which engine or optimizer trains a leaf: it overwrites the leaf, so writes of other code
// would be lost.
import { argumentError } from '../runtime/input-errors.js';
import type { Tensor } from './tensor.js';

const trainers = new WeakMap<Tensor, object>();

/** Gives `leaf` to `trainer`. Throws DS_ARGUMENT if it has another trainer. */
export function claim(leaf: Tensor, trainer: object): void {
  const present = trainers.get(leaf) ?? trainer;
  if (present === trainer) trainers.set(leaf, trainer);
  else {
    throw argumentError(
      'initialize',
      'parameters without an engine',
      'a parameter of another engine',
      'Call destroy() on the first engine, or build another model.',
    );
  }
}

/** Ends claim(); no effect if `trainer` does not own the leaf. */
export function disclaim(leaf: Tensor, trainer: object): void {
  if (trainers.get(leaf) === trainer) trainers.delete(leaf);
}

/** Returns the trainer of `leaf`; null if it belongs only to its module. */
export function trainerOf(leaf: Tensor): object | null {
  return trainers.get(leaf) ?? null;
}

// Who trains a leaf: it writes its values and takes its gradients, and what anybody else writes
// would be lost.
import { DsError } from '../errors.js';
import type { Tensor } from './tensor.js';

const trainers = new WeakMap<Tensor, object>();

/**
 * Gives `leaf` to `trainer`, an object of whoever trains it. Throws DS_ARGUMENT where it has
 * another one.
 */
export function claim(leaf: Tensor, trainer: object): void {
  const present = trainers.get(leaf) ?? trainer;
  if (present === trainer) trainers.set(leaf, trainer);
  else {
    throw new DsError({
      code: 'DS_ARGUMENT',
      op: 'initialize',
      expected: 'parameters that nobody trains yet',
      got: 'one that an engine has taken over',
      hint: 'Call destroy() of that engine first, or build another model.',
    });
  }
}

/** Ends claim(); nothing where `trainer` has it not. */
export function disclaim(leaf: Tensor, trainer: object): void {
  if (trainers.get(leaf) === trainer) trainers.delete(leaf);
}

/** Whoever trains `leaf`; null where it belongs to its module alone. */
export function trainerOf(leaf: Tensor): object | null {
  return trainers.get(leaf) ?? null;
}

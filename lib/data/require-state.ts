// Checks that loadStateDict() of a loader or a sampler received a state.

import { valueError } from '../runtime/input-errors.js';
import { isObject } from '../runtime/is-object.js';

/** Throws DS_ARGUMENT if `state` is not an object, for example missing in a checkpoint. */
export function requireState(op: string, state: unknown): void {
  if (isObject(state)) return;
  throw valueError(`${op}.loadStateDict`, 'a state that stateDict() returned', state);
}

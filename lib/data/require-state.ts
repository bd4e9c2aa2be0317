// Checks the argument of loadStateDict() of loaders and samplers.

import { valueError } from '../runtime/input-errors.js';
import { isObject } from '../runtime/is-object.js';

/** Throws DS_ARGUMENT unless `state` is an object. It is undefined if a checkpoint lacks it. */
export function requireState(op: string, state: unknown): void {
  if (isObject(state)) return;
  throw valueError(`${op}.loadStateDict`, 'a state that stateDict() returned', state);
}

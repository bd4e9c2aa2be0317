// Checks the option `classWeights` of a Trainer: factors of the labels in the loss.

import { valueError } from '../runtime/input-errors.js';
import { isObject } from '../runtime/is-object.js';
import { requireFinite } from '../runtime/require-number.js';

/** Factors of the labels in the loss: in the order of the labels, or by their names. */
export type ClassWeights = readonly number[] | Readonly<Record<string, number>>;

/**
 * Returns `given`. Throws DS_ARGUMENT unless it is a list or an object. resolveWeights() checks the
 * labels, after the model is known.
 */
export function requireWeights(op: string, given: ClassWeights): ClassWeights {
  if (Array.isArray(given) || isObject(given)) return given;
  throw valueError(op, 'a list of factors, or factors by the names of labels', given);
}

/**
 * Returns the factors in the order of the labels. A label without a factor has 1. Throws
 * DS_ARGUMENT if a name is unknown, a list has another length, or a factor is negative or not
 * finite.
 */
export function resolveWeights(given: ClassWeights, labels: readonly string[]): Float32Array {
  const op = 'Trainer classWeights';
  const factors = Array.isArray(given)
    ? (given as readonly number[])
    : labels.map((name) => (given as Record<string, number>)[name] ?? 1);
  const unknown = Array.isArray(given)
    ? undefined
    : Object.keys(given).find((name) => !labels.includes(name));
  if (unknown !== undefined || factors.length !== labels.length) {
    throw valueError(op, `a factor for each of ${labels.join(', ')}`, given);
  }
  for (const factor of factors) requireFinite(op, factor, 0);
  return Float32Array.from(factors);
}

// Rejects loads over parameters with values that depend on other parameters, such as merged
// adapters.
import { DsError } from '../errors.js';
import type { Tensor } from '../tensor/index.js';

/** Reasons to reject a load: the expected state, the actual state, and a fix. */
export type Refusal = Readonly<Record<'expected' | 'got' | 'hint', string>>;

const refusals = new WeakMap<Tensor, Refusal>();

/** Rejects loads over `parameters` from now on; null permits them again. */
export function refuseLoads(parameters: readonly Tensor[], why: Refusal | null): void {
  for (const parameter of parameters) {
    if (why) refusals.set(parameter, why);
    else refusals.delete(parameter);
  }
}

/** Tensors that cannot be loaded in one call with a tensor, and the reason. */
type ConflictingLoads = Readonly<{ others: ReadonlySet<Tensor>; why: Refusal }>;

const conflicts = new WeakMap<Tensor, ConflictingLoads>();

/** Rejects loads of `tensor` together with any of `others` from now on; null permits them again. */
export function refuseTogether(
  tensor: Tensor,
  others: readonly Tensor[],
  why: Refusal | null,
): void {
  if (why) conflicts.set(tensor, { others: new Set(others), why });
  else conflicts.delete(tensor);
}

/**
 * Throws DS_ARGUMENT with the name of the first tensor that cannot be loaded.
 */
export function requireLoadable(
  op: string,
  tensors: Iterable<readonly [string, Tensor]>,
  values: ReadonlyMap<string, Tensor> = new Map(),
): void {
  const given = new Map<string, Tensor>();
  for (const [name, tensor] of tensors) {
    const why = refusals.get(tensor);
    if (why) throw refusedError(op, name, why);
    const value = values.get(name);
    if (value) given.set(name, value);
  }
  for (const [name, value] of given) {
    const mixed = conflicts.get(value);
    if (mixed && [...given.values()].some((other) => mixed.others.has(other))) {
      throw refusedError(op, name, mixed.why);
    }
  }
}

const refusedError = (op: string, name: string, why: Refusal): DsError =>
  new DsError({ code: 'DS_ARGUMENT', op: `${op} ${name}`, ...why });

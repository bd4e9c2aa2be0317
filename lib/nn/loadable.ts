// Parameters whose values stand for more than themselves: what is loaded over them would be taken
// for something else.
import { DsError } from '../errors.js';
import type { Tensor } from '../tensor/index.js';

/** Why nothing is to be loaded: what would be, what is, and what to do. */
export type Refusal = Readonly<Record<'expected' | 'got' | 'hint', string>>;

const refusals = new WeakMap<Tensor, Refusal>();

/** From now on nothing may be loaded over `parameters`; null: all may again. */
export function refuseLoads(parameters: readonly Tensor[], why: Refusal | null): void {
  for (const parameter of parameters) {
    if (why) refusals.set(parameter, why);
    else refusals.delete(parameter);
  }
}

/** Why values of a tensor are not to be loaded together with those of others. */
type Together = Readonly<{ others: ReadonlySet<Tensor>; why: Refusal }>;

const together = new WeakMap<Tensor, Together>();

/** From now on values of `tensor` may not be loaded with any of `others`; null: they may again. */
export function refuseTogether(
  tensor: Tensor,
  others: readonly Tensor[],
  why: Refusal | null,
): void {
  if (why) together.set(tensor, { others: new Set(others), why });
  else together.delete(tensor);
}

/**
 * Throws DS_ARGUMENT that names one of the tensors over which nothing may be loaded, or of the
 * `values` by name that may not be loaded together.
 */
export function requireLoadable(
  op: string,
  tensors: Iterable<readonly [string, Tensor]>,
  values: ReadonlyMap<string, Tensor> = new Map(),
): void {
  const given = new Map<string, Tensor>();
  for (const [name, tensor] of tensors) {
    const why = refusals.get(tensor);
    if (why) throw refused(op, name, why);
    const value = values.get(name);
    if (value) given.set(name, value);
  }
  for (const [name, value] of given) {
    const mixed = together.get(value);
    if (mixed && [...given.values()].some((other) => mixed.others.has(other))) {
      throw refused(op, name, mixed.why);
    }
  }
}

const refused = (op: string, name: string, why: Refusal): DsError =>
  new DsError({ code: 'DS_ARGUMENT', op: `${op} ${name}`, ...why });

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

/** Throws DS_ARGUMENT that names one of the tensors over which nothing may be loaded. */
export function requireLoadable(op: string, tensors: Iterable<readonly [string, Tensor]>): void {
  for (const [name, tensor] of tensors) {
    const why = refusals.get(tensor);
    if (why) throw new DsError({ code: 'DS_ARGUMENT', op: `${op} ${name}`, ...why });
  }
}

// What an update by Adam's rule needs, for each optimizer that has it: tensors and scalars.

import type { AdamWScalars } from '../runtime/kernels.generated.js';
import type { UpdateTensors } from './optimizer.js';
import type { ParamGroup } from './param-groups.js';

/** A parameter group of Adam and AdamW; fields may be changed between steps. */
export interface AdamGroup extends ParamGroup {
  betas: readonly [number, number];
  /** Added to the root of the second moment. */
  eps: number;
}

/** Master weights, the moments and what changes them, for the ops of Adam's family. */
export function adamTensors({ master, grad, weight, state, control }: UpdateTensors) {
  return { master, m: state.exp_avg!, v: state.exp_avg_sq!, grad, weight, control };
}

/** What `group` asks of update number `step`, from 1: null is one without bias correction. */
export function adamScalars(
  { lr, betas, eps, weightDecay }: Readonly<AdamGroup>,
  step: number | null,
  { decoupled = true } = {},
): AdamWScalars {
  const [beta1, beta2] = betas;
  const correction = (beta: number): number => (step === null ? 1 : 1 - beta ** step);
  return {
    ...{ lr, beta1, beta2, eps, weightDecay, decoupled },
    correction1: correction(beta1),
    correction2: correction(beta2),
  };
}

// The parts of Adam's rule that AdamW, Muon and the 1-bit optimizers share.

import type { AdamWScalars } from '../runtime/kernels.generated.js';
import type { UpdateTensors } from './optimizer.js';
import type { ParamGroup } from './param-groups.js';

/** A parameter group of Adam and AdamW. Fields may change between steps. */
export interface AdamGroup extends ParamGroup {
  betas: readonly [number, number];
  /** Added to the square root of the second moment. */
  eps: number;
}

/** Options of optimizers with Adam's moments. */
interface AdamDefaults {
  lr?: number;
  betas?: readonly [number, number];
  eps?: number;
  weightDecay?: number;
}

/** Returns the defaults of new groups: the given options, and PyTorch's values for missing ones. */
export function adamDefaults({
  lr = 1e-3,
  betas = [0.9, 0.999],
  eps = 1e-8,
  weightDecay = 0,
}: AdamDefaults): Required<AdamDefaults> {
  return { lr, betas, eps, weightDecay };
}

/** Returns the tensors of Adam's ops: master weights, moments, gradient, and weights. */
export function adamTensors({ master, grad, weight, state, control }: UpdateTensors) {
  return { master, m: state.exp_avg!, v: state.exp_avg_sq!, grad, weight, control };
}

/**
 * Returns the scalars of `group` for update `step`, from 1. If `step` is null, moments are not
 * bias-corrected.
 */
export function adamScalars(
  { lr, betas, eps, weightDecay }: Readonly<AdamGroup>,
  step: number | null,
  { decoupled = true } = {},
): AdamWScalars {
  const [beta1, beta2] = betas;
  const correction = (beta: number): number => (step === null ? 1 : 1 - beta ** step);
  return {
    lr,
    beta1,
    beta2,
    eps,
    weightDecay,
    decoupled,
    correction1: correction(beta1),
    correction2: correction(beta2),
  };
}

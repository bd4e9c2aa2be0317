// Adagrad: learning rates that fall with the sum of squared gradients. Source: Duchi et al. 2011 in
// the form of torch.optim.Adagrad.

import { readWithDefaults } from '../runtime/options.js';
import { required } from '../runtime/required.js';
import { type DeclaredState, perElement } from './declared-state.js';
import type { UpdateSettings, UpdateTensors } from './optimizer.js';
import { makeGroups, type ParamGroup, type ParamsOf } from './param-groups.js';
import { StandaloneOptimizer } from './standalone.js';
import type { UpdateKernels } from './update-kernels.js';

/** A parameter group of Adagrad. Fields may change between steps. */
export interface AdagradGroup extends ParamGroup {
  /** See AdagradOptions. */
  lrDecay: number;
  /** Added to the root of the sums. */
  eps: number;
  /** Initial value of the sums. */
  initialAccumulatorValue: number;
}

/** Defaults of Adagrad's groups. */
export interface AdagradOptions {
  /** Learning rate. Default: 1e-2. */
  lr?: number;
  /** Update t, from 1, has the learning rate lr / (1 + (t - 1) lrDecay). Default: 0. */
  lrDecay?: number;
  /** Added to the gradient, times the parameter. Default: 0. */
  weightDecay?: number;
  /** Initial sum of squared gradients. Default: 0. */
  initialAccumulatorValue?: number;
  /** Added to the denominator of an update. Default: 1e-10. */
  eps?: number;
}

const DEFAULTS: Required<AdagradOptions> = {
  lr: 1e-2,
  lrDecay: 0,
  weightDecay: 0,
  initialAccumulatorValue: 0,
  eps: 1e-10,
};

/**
 * Adagrad, as in PyTorch: g += wd p; sum += g^2; p -= lr / (1 + (t - 1) lrDecay) * g / (sqrt(sum) +
 * eps). csrc/ops/adagrad.h has the exact sequence of operations.
 */
export class Adagrad extends StandaloneOptimizer<AdagradGroup> {
  readonly name = 'Adagrad';
  readonly groups: AdagradGroup[];

  /** Throws DS_ARGUMENT for an invalid option or parameter group. */
  constructor(params: ParamsOf<AdagradGroup>, given: AdagradOptions = {}) {
    super();
    const defaults = readWithDefaults('Adagrad', given, DEFAULTS);
    this.groups = makeGroups<AdagradGroup>('Adagrad', params, defaults);
  }

  declareState(group: number, shape: readonly number[]): DeclaredState {
    const { initialAccumulatorValue } = required(this.groups[group]);
    return { sum: perElement(shape, initialAccumulatorValue) };
  }

  update(
    tensors: UpdateTensors,
    settings: UpdateSettings<AdagradGroup>,
    kernels: UpdateKernels,
  ): void {
    const { group, master, grad, weight, state, control } = tensors;
    const { lr, lrDecay, eps, weightDecay } = required(settings.groups[group]);
    kernels.adagrad({
      master,
      sum: state.sum!,
      grad,
      weight,
      control,
      lr: lr / (1 + (settings.step - 1) * lrDecay),
      eps,
      weightDecay,
    });
  }
}

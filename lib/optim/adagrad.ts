// Adagrad: the learning rate of each element falls with the sum of its squared gradients. Source:
// Duchi et al. 2011, as implemented by torch.optim.Adagrad.

import { readWithDefaults } from '../runtime/options.js';
import { required } from '../runtime/required.js';
import { type DeclaredState, perElement } from './declared-state.js';
import type { UpdateSettings, UpdateTensors } from './optimizer.js';
import { makeGroups, type ParamGroup, type ParamsOf } from './param-groups.js';
import { StandaloneOptimizer } from './standalone.js';
import type { UpdateKernels } from './update-kernels.js';

/** A parameter group of Adagrad. Fields may change between steps. */
export interface AdagradGroup extends ParamGroup {
  /** Update t has the learning rate lr / (1 + (t - 1) lrDecay). */
  lrDecay: number;
  /** Added to the square root of the sum. */
  eps: number;
  /** Value of the sums before the first update. */
  initialAccumulatorValue: number;
}

/** Default hyperparameters of Adagrad's groups. */
export interface AdagradOptions {
  /** Learning rate. Default: 1e-2. */
  lr?: number;
  /** Update t, from 1, has the learning rate lr / (1 + (t - 1) lrDecay). Default: 0. */
  lrDecay?: number;
  /** Weight decay: this fraction of the parameter is added to the gradient. Default: 0. */
  weightDecay?: number;
  /** Value of the sums of squared gradients before the first update. Default: 0. */
  initialAccumulatorValue?: number;
  /** Added to the square root of the sum. Default: 1e-10. */
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
 * Adagrad, as in PyTorch:
 *
 *   g += wd p
 *   sum += g^2
 *   p -= lr / (1 + (t - 1) lrDecay) * g / (sqrt(sum) + eps)
 *
 * csrc/ops/adagrad.h has the exact sequence of operations.
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

// Lion: the sign of an interpolated momentum is the direction. Source: Chen et al. 2023,
// arXiv:2302.06675.

import { namesOf, readOptions } from '../runtime/options.js';
import { required } from '../runtime/required.js';
import { type DeclaredState, perElement } from './declared-state.js';
import type { UpdateSettings, UpdateTensors } from './optimizer.js';
import { makeGroups, type ParamGroup, type ParamsOf } from './param-groups.js';
import { StandaloneOptimizer } from './standalone.js';
import type { UpdateKernels } from './update-kernels.js';

/** A parameter group of Lion. Fields may change between steps. */
export interface LionGroup extends ParamGroup {
  betas: readonly [number, number];
}

/** Default hyperparameters of Lion's groups. */
export interface LionOptions {
  /** Learning rate. Default: 1e-3. */
  lr?: number;
  /**
   * [weight of the momentum in the direction, decay of the momentum]. Default: [0.9, 0.999], as in
   * DeepSpeed; the paper uses 0.99.
   */
  betas?: readonly [number, number];
  /** Weight decay, decoupled from the gradient. Default: 0. */
  weightDecay?: number;
}

/**
 * Lion: moves each weight by the sign of a momentum.
 *
 *   p -= lr wd p
 *   p -= lr sign(b1 m + (1 - b1) g), with sign(0) = 0
 *   m = b2 m + (1 - b2) g
 *
 * csrc/ops/lion.h has the exact sequence of operations.
 */
export class Lion extends StandaloneOptimizer<LionGroup> {
  readonly name = 'Lion';
  readonly groups: LionGroup[];

  /** Throws DS_ARGUMENT for an invalid option or parameter group. */
  constructor(params: ParamsOf<LionGroup>, given: LionOptions = {}) {
    super();
    const options = readOptions('Lion', given, namesOf.LionOptions);
    const { lr = 1e-3, betas = [0.9, 0.999], weightDecay = 0 } = options;
    this.groups = makeGroups<LionGroup>('Lion', params, { lr, betas, weightDecay });
  }

  declareState(_group: number, shape: readonly number[]): DeclaredState {
    return { exp_avg: perElement(shape) };
  }

  update(
    tensors: UpdateTensors,
    settings: UpdateSettings<LionGroup>,
    kernels: UpdateKernels,
  ): void {
    const { group, master, grad, weight, state, control } = tensors;
    const { lr, betas, weightDecay } = required(settings.groups[group]);
    kernels.lion({
      master,
      m: state.exp_avg!,
      grad,
      weight,
      control,
      lr,
      beta1: betas[0],
      beta2: betas[1],
      weightDecay,
    });
  }
}

// RMSprop: the learning rate of each element falls with a running mean of its squared gradients.
// Sources: Tieleman & Hinton 2012, lecture 6.5; Graves 2013, arXiv:1308.0850; as implemented by
// torch.optim.RMSprop.

import { readWithDefaults } from '../runtime/options.js';
import { required } from '../runtime/required.js';
import { type DeclaredState, perElement, requireState } from './declared-state.js';
import type { UpdateSettings, UpdateTensors } from './optimizer.js';
import { makeGroups, type ParamGroup, type ParamsOf } from './param-groups.js';
import { StandaloneOptimizer } from './standalone.js';
import type { UpdateKernels } from './update-kernels.js';

/**
 * A parameter group of RMSprop. Fields may change between steps, with two exceptions: if `momentum`
 * was 0 or `centered` false at the first step, it must stay so, because there is no state for it.
 */
export interface RMSpropGroup extends ParamGroup {
  /** Decay of the running means. */
  alpha: number;
  /** Added to the square root. */
  eps: number;
  /** This fraction of the last direction is added to the next one; 0 disables momentum. */
  momentum: number;
  /** Whether a running mean of gradients is subtracted, which needs state. */
  centered: boolean;
}

/** Default hyperparameters of RMSprop's groups. */
export interface RMSpropOptions {
  /** Learning rate. Default: 1e-2. */
  lr?: number;
  /** Decay of the running means. Default: 0.99. */
  alpha?: number;
  /** Added to the square root in the denominator. Default: 1e-8. */
  eps?: number;
  /** Weight decay: this fraction of the parameter is added to the gradient. Default: 0. */
  weightDecay?: number;
  /** Momentum factor. Default: 0, which needs no state. */
  momentum?: number;
  /**
   * Divide by the estimated standard deviation. This stores a running mean of gradients too.
   * Default: false.
   */
  centered?: boolean;
}

const DEFAULTS: Required<RMSpropOptions> = {
  lr: 1e-2,
  alpha: 0.99,
  eps: 1e-8,
  weightDecay: 0,
  momentum: 0,
  centered: false,
};

/**
 * RMSprop, as in PyTorch:
 *
 *   g += wd p
 *   s = a s + (1 - a) g^2
 *   d = g / (sqrt(s) + eps)
 *   d = g / (sqrt(max(0, s - m^2)) + eps) with m += (1 - a) (g - m), if centered
 *   b = momentum b + d, and d is b, with momentum
 *   p -= lr d
 *
 * If rounding makes s - m^2 negative, it counts as 0 here; PyTorch returns NaN. csrc/ops/rmsprop.h
 * has the exact sequence of operations.
 */
export class RMSprop extends StandaloneOptimizer<RMSpropGroup> {
  readonly name = 'RMSprop';
  readonly groups: RMSpropGroup[];

  /** Throws DS_ARGUMENT for an invalid option or parameter group. */
  constructor(params: ParamsOf<RMSpropGroup>, given: RMSpropOptions = {}) {
    super();
    const defaults = readWithDefaults('RMSprop', given, DEFAULTS);
    this.groups = makeGroups<RMSpropGroup>('RMSprop', params, defaults);
  }

  declareState(group: number, shape: readonly number[]): DeclaredState {
    const { centered, momentum } = required(this.groups[group]);
    return {
      square_avg: perElement(shape),
      ...(centered ? { grad_avg: perElement(shape) } : {}),
      ...(momentum > 0 ? { momentum_buffer: perElement(shape) } : {}),
    };
  }

  /** Throws DS_ARGUMENT if momentum or `centered` was turned on after the state was created. */
  update(
    tensors: UpdateTensors,
    settings: UpdateSettings<RMSpropGroup>,
    kernels: UpdateKernels,
  ): void {
    const { group, master, grad, weight, state, control } = tensors;
    const rule = required(settings.groups[group]);
    const { lr, alpha, eps, weightDecay, momentum, centered } = rule;
    requireState(`RMSprop group ${group} momentum`, momentum, state.momentum_buffer);
    requireState(`RMSprop group ${group} centered`, centered, state.grad_avg);
    kernels.rmsprop({
      master,
      squareAvg: state.square_avg!,
      gradAvg: centered ? state.grad_avg! : null,
      momentumBuffer: state.momentum_buffer ?? null,
      grad,
      weight,
      control,
      lr,
      alpha,
      eps,
      weightDecay,
      momentum,
    });
  }
}

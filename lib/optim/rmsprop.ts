// RMSprop: learning rates that fall with a running mean of squared gradients. Sources: Tieleman &
// Hinton 2012, lecture 6.5; Graves 2013, arXiv:1308.0850; in the form of torch.optim.RMSprop.

import { readWithDefaults } from '../runtime/options.js';
import { required } from '../runtime/required.js';
import { type DeclaredState, perElement, requireState } from './declared-state.js';
import type { UpdateSettings, UpdateTensors } from './optimizer.js';
import { makeGroups, type ParamGroup, type ParamsOf } from './param-groups.js';
import { StandaloneOptimizer } from './standalone.js';
import type { UpdateKernels } from './update-kernels.js';

/**
 * A parameter group of RMSprop. Fields may change between steps. Exceptions: a momentum of 0 and
 * `centered` false, which have no state.
 */
export interface RMSpropGroup extends ParamGroup {
  /** Decay of the running means. */
  alpha: number;
  /** Added to the root. */
  eps: number;
  /** Fraction of the last direction in the next one; 0 disables momentum. */
  momentum: number;
  /** Whether the mean of gradients is stored too. */
  centered: boolean;
}

/** Defaults of RMSprop's groups. */
export interface RMSpropOptions {
  /** Learning rate. Default: 1e-2. */
  lr?: number;
  /** Decay of the running means. Default: 0.99. */
  alpha?: number;
  /** Added to the denominator of an update. Default: 1e-8. */
  eps?: number;
  /** Added to the gradient, times the parameter. Default: 0. */
  weightDecay?: number;
  /** Momentum factor. Default: 0, no momentum and no state for it. */
  momentum?: number;
  /**
   * Divides by the estimated standard deviation; stores a mean of gradients too. Default: false.
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
 * PyTorch returns NaN if rounding makes s - m^2 negative. csrc/ops/rmsprop.h has the exact sequence
 * of operations.
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

  /** Throws DS_ARGUMENT for a momentum, or `centered`, without its state. */
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

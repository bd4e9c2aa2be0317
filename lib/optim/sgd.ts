// Stochastic gradient descent with momentum. Source: Sutskever et al. 2013, as implemented by
// torch.optim.SGD.

import { argumentError } from '../runtime/input-errors.js';
import { readWithDefaults } from '../runtime/options.js';
import { required } from '../runtime/required.js';
import { type DeclaredState, perElement, requireState } from './declared-state.js';
import type { UpdateSettings, UpdateTensors } from './optimizer.js';
import { makeGroups, type ParamGroup, type ParamsOf } from './param-groups.js';
import { StandaloneOptimizer } from './standalone.js';
import type { UpdateKernels } from './update-kernels.js';

/**
 * A parameter group of SGD. Fields may change between steps, with one exception: if `momentum` was
 * 0 at the first step, it must stay 0, because there is no buffer.
 */
export interface SgdGroup extends ParamGroup {
  /** This fraction of the last direction is added to the next one; 0 disables momentum. */
  momentum: number;
  /** This fraction of each gradient is not added to the buffer, except for the first gradient. */
  dampening: number;
  /** Whether to use Nesterov momentum. */
  nesterov: boolean;
}

/** Default hyperparameters of SGD's groups. */
export interface SgdOptions {
  /** Learning rate. Default: 1e-3. */
  lr?: number;
  /** Momentum factor. Default: 0, which needs no state. */
  momentum?: number;
  /** The buffer gets 1 - dampening of each gradient, except for the first one. Default: 0. */
  dampening?: number;
  /** Weight decay: this fraction of the parameter is added to the gradient. Default: 0. */
  weightDecay?: number;
  /** Use Nesterov momentum: the direction is g + momentum * buffer. Default: false. */
  nesterov?: boolean;
}

const DEFAULTS: Required<SgdOptions> = {
  lr: 1e-3,
  momentum: 0,
  dampening: 0,
  weightDecay: 0,
  nesterov: false,
};

/**
 * SGD, as in PyTorch:
 *
 *   g += wd p
 *   buffer = momentum * buffer + (1 - dampening) g; the first buffer is g
 *   p -= lr * buffer; with nesterov lr * (g + momentum * buffer), without momentum lr * g
 *
 * csrc/ops/sgd.h has the exact sequence of operations.
 */
export class Sgd extends StandaloneOptimizer<SgdGroup> {
  readonly name: string = 'SGD';
  readonly groups: SgdGroup[];

  /**
   * Throws DS_ARGUMENT for an invalid option or parameter group, and for nesterov without momentum
   * or with dampening.
   */
  constructor(params: ParamsOf<SgdGroup>, given: SgdOptions = {}) {
    super();
    const defaults = readWithDefaults('SGD', given, DEFAULTS);
    this.groups = makeGroups<SgdGroup>('SGD', params, defaults);
    this.groups.forEach(requireNesterovMomentum);
  }

  declareState(group: number, shape: readonly number[]): DeclaredState {
    const { momentum } = required(this.groups[group]);
    return momentum === 0 ? {} : { momentum_buffer: perElement(shape) };
  }

  /** Throws DS_ARGUMENT if momentum was turned on after the state was created. */
  update(tensors: UpdateTensors, settings: UpdateSettings<SgdGroup>, kernels: UpdateKernels): void {
    const { group, master, grad, weight, state, control } = tensors;
    const { lr, weightDecay, momentum, dampening, nesterov } = required(settings.groups[group]);
    requireState(`${this.name} group ${group} momentum`, momentum, state.momentum_buffer);
    kernels.sgd({
      master,
      momentumBuffer: state.momentum_buffer ?? null,
      grad,
      weight,
      control,
      lr,
      weightDecay,
      momentum,
      dampening,
      nesterov,
      first: settings.step === 1,
    });
  }
}

/** Throws DS_ARGUMENT for settings of Nesterov momentum that torch.optim.SGD refuses. */
function requireNesterovMomentum(group: SgdGroup, index: number): void {
  const { nesterov, momentum, dampening } = group;
  if (!nesterov || (momentum > 0 && dampening === 0)) return;
  throw argumentError(
    `SGD group ${index}`,
    'a momentum above 0 and a dampening of 0 with nesterov',
    `momentum ${momentum}, dampening ${dampening}`,
    'Set momentum, for example to 0.9, or remove nesterov.',
  );
}

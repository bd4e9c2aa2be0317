// Stochastic gradient descent with momentum. Source: Sutskever et al. 2013 in the form of
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
 * A parameter group of SGD. Fields may change between steps, except a momentum of 0, which has no
 * buffer.
 */
export interface SgdGroup extends ParamGroup {
  /** Fraction of the last direction in the next one; 0 disables momentum. */
  momentum: number;
  /** Fraction of each gradient that the buffer ignores, except for the first one. */
  dampening: number;
  /** Whether to use Nesterov momentum. */
  nesterov: boolean;
}

/** Defaults of SGD's groups. */
export interface SgdOptions {
  /** Learning rate. Default: 1e-3. */
  lr?: number;
  /** Momentum factor. Default: 0, no momentum and no state. */
  momentum?: number;
  /** The buffer receives 1 - dampening of each gradient, except for the first one. Default: 0. */
  dampening?: number;
  /** Added to the gradient, times the parameter. Default: 0. */
  weightDecay?: number;
  /** Steps by g + momentum * buffer. Default: false. */
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
 *   buffer = momentum * buffer + (1 - dampening) g, which starts as g
 *   p -= lr * buffer; with nesterov lr * (g + momentum * buffer), without momentum lr * g
 *
 * csrc/ops/sgd.h has the exact sequence of operations.
 */
export class Sgd extends StandaloneOptimizer<SgdGroup> {
  readonly name: string = 'SGD';
  readonly groups: SgdGroup[];

  /** Throws DS_ARGUMENT: see makeGroups; and for nesterov without momentum or with dampening. */
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

  /** Throws DS_ARGUMENT for a momentum without a buffer. */
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

/** Throws DS_ARGUMENT for the settings that torch.optim.SGD refuses. */
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

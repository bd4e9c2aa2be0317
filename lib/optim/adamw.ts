// Adam with decoupled weight decay (AdamW) or L2 weight decay. Sources: Kingma & Ba 2015;
// Loshchilov & Hutter 2019.

import type { DType } from '../runtime/dtype.js';
import type { AdamWScalars } from '../runtime/kernels.generated.js';
import { namesOf, readOptions } from '../runtime/options.js';
import { required } from '../runtime/required.js';
import { type AdamGroup, adamDefaults, adamScalars, adamTensors } from './adam-rule.js';
import { type DeclaredState, perElement } from './declared-state.js';
import type {
  SpeculationTensors,
  SpeculativeOptimizer,
  StepGradient,
  UpdateSettings,
  UpdateTensors,
} from './optimizer.js';
import { makeGroups, type ParamsOf } from './param-groups.js';
import { halves, type SplitTensors, type SplittingOptimizer } from './split-master.js';
import { StandaloneOptimizer } from './standalone.js';
import type { UpdateKernels } from './update-kernels.js';

/** Default hyperparameters of AdamW's groups, and options of all groups. */
export interface AdamWOptions {
  /** Learning rate. Default: 1e-3. */
  lr?: number;
  /** Decay factors of the first and the second moment. Default: [0.9, 0.999]. */
  betas?: readonly [number, number];
  /** Added to the denominator of an update. Default: 1e-8. */
  eps?: number;
  /** Weight decay. Default: 0. */
  weightDecay?: number;
  /** Divide the moments by 1 - beta^t. Default: true. */
  biasCorrection?: boolean;
  /** True: decay weights directly. False: add weight_decay * p to the gradient. Default: true. */
  decoupled?: boolean;
  /**
   * False: store the moments in bf16, which needs 4 bytes per parameter instead of 8 and is not
   * exact. Default: true. Source: DeepSpeedCPUAdam's fp32_optimizer_states.
   */
  fp32OptimizerStates?: boolean;
}

/**
 * AdamW, as in PyTorch:
 *
 *   m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
 *   p -= lr wd p
 *   p -= lr / c1 * m / (sqrt(v / c2) + eps), with c = 1 - b^t
 *
 * csrc/ops/adamw_rule.h has the exact sequence of operations. bf16 moments are converted to f32 for
 * the update and rounded afterwards: m to nearest, v stochastically (csrc/core/bf16_moments.h).
 */
export class AdamW
  extends StandaloneOptimizer<AdamGroup>
  implements SpeculativeOptimizer<AdamGroup>, SplittingOptimizer<AdamGroup>
{
  readonly name = 'AdamW';
  readonly groups: AdamGroup[];
  private readonly biasCorrection: boolean;
  private readonly decoupled: boolean;
  private readonly moments: DType;

  /** Throws DS_ARGUMENT for an invalid option or parameter group. */
  constructor(params: ParamsOf<AdamGroup>, given: AdamWOptions = {}) {
    super();
    const options = readOptions('AdamW', given, namesOf.AdamWOptions);
    this.groups = makeGroups<AdamGroup>('AdamW', params, adamDefaults(options));
    this.biasCorrection = options.biasCorrection ?? true;
    this.decoupled = options.decoupled ?? true;
    this.moments = (options.fp32OptimizerStates ?? true) ? 'f32' : 'bf16';
  }

  declareState(_group: number, shape: readonly number[]): DeclaredState {
    const moment = { ...perElement(shape), dtype: this.moments };
    return { exp_avg: moment, exp_avg_sq: moment };
  }

  update(
    tensors: UpdateTensors,
    settings: UpdateSettings<AdamGroup>,
    kernels: UpdateKernels,
  ): void {
    kernels.adamW({ ...adamTensors(tensors), ...this.scalars(settings, tensors.group) });
  }

  get updatesHalves(): boolean {
    return this.update === AdamW.prototype.update;
  }

  updateHalves(
    { group, master, grad, state, control }: SplitTensors,
    settings: UpdateSettings<AdamGroup>,
    kernels: UpdateKernels,
  ): void {
    kernels.adamWHalves({
      high: master,
      low: state[halves.low]!,
      ties: state[halves.ties]!,
      m: state.exp_avg!,
      v: state.exp_avg_sq!,
      grad,
      control,
      ...this.scalars(settings, group),
    });
  }

  speculate(tensors: SpeculationTensors, kernels: UpdateKernels): void {
    const { group, master, state, previous, next, weight } = tensors;
    const either = (previous ?? next) as StepGradient<AdamGroup>;
    const speculated = (next ?? either) as StepGradient<AdamGroup>;
    kernels.adamWSpeculate({
      master,
      m: state.exp_avg!,
      v: state.exp_avg_sq!,
      previous: previous?.grad ?? null,
      previousControl: previous?.control ?? null,
      next: next?.grad ?? null,
      nextControl: next?.control ?? null,
      weight,
      previousRule: this.scalars(either.settings, group),
      nextRule: this.scalars(speculated.settings, group),
    });
  }

  private scalars({ step, groups }: UpdateSettings<AdamGroup>, group: number): AdamWScalars {
    const { biasCorrection, decoupled } = this;
    return adamScalars(required(groups[group]), biasCorrection ? step : null, { decoupled });
  }
}

/** Default hyperparameters of Adam's groups, and options of all groups. */
export interface AdamOptions extends Omit<AdamWOptions, 'decoupled'> {
  /**
   * True: decay weights directly, like AdamW. False: add weight_decay * p to the gradient. Default:
   * true.
   */
  adamWMode?: boolean;
}

/** AdamW, unless adamWMode is false. DeepSpeed's optimizer "Adam" has the same default. */
export class Adam extends AdamW {
  /** Throws DS_ARGUMENT for an invalid option or parameter group. */
  constructor(params: ParamsOf<AdamGroup>, given: AdamOptions = {}) {
    const { adamWMode, ...options } = readOptions('Adam', given, namesOf.AdamOptions);
    super(params, { ...options, decoupled: adamWMode ?? true });
  }
}

/**
 * Names of DeepSpeed for Adam. Every update is one fused pass, on the device that stores the state.
 */
export { Adam as FusedAdam, Adam as DeepSpeedCPUAdam };

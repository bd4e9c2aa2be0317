// 1-bit Adam: after a warm-up, the second moment is frozen, and ranks exchange first moments with
// one bit per element. Sources: Tang et al. 2021, arXiv:2102.02888; DeepSpeed's OneBitAdam.

import { namesOf, readOptions } from '../runtime/options.js';
import { requireInteger } from '../runtime/require-number.js';
import { required } from '../runtime/required.js';
import { type AdamGroup, adamDefaults, adamScalars, adamTensors } from './adam-rule.js';
import { type DeclaredState, perElement } from './declared-state.js';
import {
  type ExchangingOptimizer,
  type PayloadPass,
  wholeParameter,
  writeMoments,
} from './exchange.js';
import type { UpdateSettings, UpdateTensors } from './optimizer.js';
import { makeGroups, type ParamsOf } from './param-groups.js';
import { StandaloneOptimizer } from './standalone.js';
import type { UpdateKernels } from './update-kernels.js';

/** Default hyperparameters of 1-bit Adam's groups, and the length of its warm-up. */
export interface OneBitAdamOptions {
  /** Learning rate. Default: 1e-3. */
  lr?: number;
  /** Decay factors of the first and the second moment. Default: [0.9, 0.999]. */
  betas?: readonly [number, number];
  /** Added to the denominator of an update. Default: 1e-8. */
  eps?: number;
  /** Weight decay, decoupled from the gradient. Default: 0. */
  weightDecay?: number;
  /** Number of updates with uncompressed gradients (the warm-up). Default: 100000. */
  freezeStep?: number;
}

/**
 * 1-bit Adam, as in DeepSpeed. Updates 1 to freezeStep are AdamW without bias correction.
 * Afterwards v is constant. Each rank computes m from its own gradient:
 *
 *   m = b1 m + (1 - b1) g
 *
 * The average of m over the ranks then replaces m. It is exchanged with one bit per element and
 * error feedback, and it is 0 where v is 0. It gives the update:
 *
 *   p -= lr (m / (sqrt(v) + eps) + wd p)
 *
 * A single rank exchanges nothing. csrc/ops/adamw_rule.h and csrc/ops/onebit.h have the exact
 * sequences of operations.
 */
export class OneBitAdam
  extends StandaloneOptimizer<AdamGroup>
  implements ExchangingOptimizer<AdamGroup>
{
  readonly name = 'OneBitAdam';
  readonly groups: AdamGroup[];
  readonly levels = 'rms';
  readonly needsResync = false;
  private readonly freezeStep: number;

  /** Throws DS_ARGUMENT for an invalid option or parameter group. */
  constructor(params: ParamsOf<AdamGroup>, given: OneBitAdamOptions = {}) {
    super();
    const options = readOptions('OneBitAdam', given, namesOf.OneBitAdamOptions);
    this.groups = makeGroups<AdamGroup>('OneBitAdam', params, adamDefaults(options));
    this.freezeStep = requireInteger('OneBitAdam freezeStep', options.freezeStep ?? 100_000, 0);
  }

  declareState(_group: number, shape: readonly number[]): DeclaredState {
    return { exp_avg: perElement(shape), exp_avg_sq: perElement(shape) };
  }

  segmentSize(shape: readonly number[]): number {
    return wholeParameter(shape);
  }

  sumsGradients(step: number): boolean {
    return step <= this.freezeStep;
  }

  update(
    tensors: UpdateTensors,
    settings: UpdateSettings<AdamGroup>,
    kernels: UpdateKernels,
  ): void {
    const group = required(settings.groups[tensors.group]);
    if (this.sumsGradients(settings.step)) updateUncorrected(tensors, group, kernels);
    else updateFrozen(tensors, group, kernels);
  }

  passOf({ step, groups }: UpdateSettings<AdamGroup>): PayloadPass | null {
    if (this.sumsGradients(step)) return null;
    return {
      resetsErrors: step === this.freezeStep + 1,
      write: writeMoments(groups),
      apply(tensors, payload, kernels) {
        const group = required(groups[tensors.group]);
        updateFrozen({ ...tensors, grad: payload }, { ...group, betas: [0, 0] }, kernels);
      },
    };
  }

  resync(): null {
    return null;
  }
}

/** Enqueues an update by AdamW's rule without bias correction. */
export function updateUncorrected(
  tensors: UpdateTensors,
  group: AdamGroup,
  kernels: UpdateKernels,
): void {
  kernels.adamW({ ...adamTensors(tensors), ...adamScalars(group, null) });
}

/** Enqueues an update by Adam's rule with a frozen second moment, without bias correction. */
export function updateFrozen(
  tensors: UpdateTensors,
  { lr, betas, eps, weightDecay }: AdamGroup,
  kernels: UpdateKernels,
): void {
  kernels.frozenAdam({ ...adamTensors(tensors), lr, beta1: betas[0], eps, weightDecay });
}

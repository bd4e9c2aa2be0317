// 0/1 Adam: sums of gradients at growing intervals, one bit per element between them, and finally
// local updates. Sources: Lu et al. 2022, arXiv:2202.06009; DeepSpeed's ZeroOneAdam.

import { type OptionNames, readOptions } from '../runtime/options.js';
import { requireInteger } from '../runtime/require-number.js';
import { required } from '../runtime/required.js';
import type { AdamGroup } from './adam-rule.js';
import { type DeclaredState, perElement } from './declared-state.js';
import { Drift } from './drift.js';
import { type ExchangingOptimizer, type PayloadPass, wholeParameter } from './exchange.js';
import { frozenAdam, plainAdam } from './one-bit-adam.js';
import type { UpdateSettings, UpdateTensors } from './optimizer.js';
import { makeGroups, type ParamsOf } from './param-groups.js';
import { StandaloneOptimizer } from './standalone.js';
import type { UpdateKernels } from './update-kernels.js';
import { type ZeroOneIntervals, ZeroOnePhases } from './zero-one-phases.js';

/** Defaults of 0/1 Adam's groups, and its phases. */
export interface ZeroOneAdamOptions {
  /** Default: 1e-3. */
  lr?: number;
  /** Default: [0.9, 0.999]. */
  betas?: readonly [number, number];
  /** Default: 1e-8. */
  eps?: number;
  /** Decoupled. Default: 0. */
  weightDecay?: number;
  /** Updates of the first phase, which changes the second moment. Default: 100000. */
  varFreezeStep?: number;
  /** Updates of the second moment before their interval doubles. Default: 16. */
  varUpdateScaler?: number;
  /**
   * Updates of the second phase before the interval of synchronization doubles. Default: 32678, as
   * in DeepSpeed.
   */
  localStepScaler?: number;
  /** Maximum interval of synchronization in updates. Default: 16. */
  localStepClipper?: number;
}

const NAMES: OptionNames<ZeroOneAdamOptions> = {
  ...{ lr: true, betas: true, eps: true, weightDecay: true, varFreezeStep: true },
  ...{ varUpdateScaler: true, localStepScaler: true, localStepClipper: true },
};

/**
 * First phase, updates 1 to varFreezeStep: if the interval of the second moment divides the
 * update's number, AdamW without bias correction. Else the average of the ranks' gradients, with
 * one bit per element and error feedback, changes only m.
 *
 * Second phase: v is constant; each rank updates m and p by its own gradients. If the interval of
 * synchronization divides the number, u is replaced by the average over ranks in the same way, and
 * all ranks get the same weights, the new anchor:
 *
 *   u = (p - anchor) (sqrt(v) + eps)
 *   m = -u / (sum of learning rates since the last synchronization)
 *   p = anchor + u / (sqrt(v) + eps)
 *
 * A single rank always updates by its own gradients. See csrc/ops/onebit.h.
 */
export class ZeroOneAdam
  extends StandaloneOptimizer<AdamGroup>
  implements ExchangingOptimizer<AdamGroup>
{
  readonly name = 'ZeroOneAdam';
  readonly groups: AdamGroup[];
  readonly levels = 'rms';
  private readonly phases: ZeroOnePhases;
  private readonly intervals: ZeroOneIntervals;
  private readonly drift = new Drift();
  /** This update is the first local one since the weights were equal; it sets the anchor. */
  private leavesAnchor = false;

  /** Throws DS_ARGUMENT, see makeGroups. */
  constructor(params: ParamsOf<AdamGroup>, given: ZeroOneAdamOptions = {}) {
    super();
    const options = readOptions('ZeroOneAdam', given, NAMES);
    const { lr = 1e-3, betas = [0.9, 0.999], eps = 1e-8, weightDecay = 0 } = options;
    this.groups = makeGroups<AdamGroup>('ZeroOneAdam', params, { lr, betas, eps, weightDecay });
    const count = (name: keyof ZeroOneIntervals, otherwise: number, least: number): number =>
      requireInteger(`ZeroOneAdam ${name}`, options[name] ?? otherwise, least);
    this.intervals = {
      varFreezeStep: count('varFreezeStep', 100_000, 0),
      varUpdateScaler: count('varUpdateScaler', 16, 1),
      localStepScaler: count('localStepScaler', 32_678, 1),
      localStepClipper: count('localStepClipper', 16, 1),
    };
    this.phases = new ZeroOnePhases(this.intervals);
  }

  /**
   * A checkpoint needs no anchor: ranks synchronize before it, so the anchor equals the weights.
   */
  declareState(_group: number, shape: readonly number[]): DeclaredState {
    return {
      exp_avg: perElement(shape),
      exp_avg_sq: perElement(shape),
      anchor: { ...perElement(shape), saved: false },
    };
  }

  segmentSize(shape: readonly number[]): number {
    return wholeParameter(shape);
  }

  sumsGradients(step: number): boolean {
    return this.phases.stepOf(step) === 'variance';
  }

  get isAdrift(): boolean {
    return this.drift.isOpen;
  }

  update(
    tensors: UpdateTensors,
    settings: UpdateSettings<AdamGroup>,
    kernels: UpdateKernels,
  ): void {
    const group = required(settings.groups[tensors.group]);
    if (this.sumsGradients(settings.step)) {
      plainAdam(tensors, group, kernels);
      return;
    }
    if (this.leavesAnchor) kernels.copy({ in: tensors.master, out: tensors.state.anchor! });
    frozenAdam(tensors, group, kernels);
  }

  passOf(settings: UpdateSettings<AdamGroup>): PayloadPass | null {
    const { step, groups } = settings;
    const kind = this.phases.stepOf(step);
    this.leavesAnchor = false;
    if (kind === 'variance') return null;
    if (kind === 'gradient') return gradientPass(groups);
    const rates = groups.map(({ lr }) => lr);
    this.leavesAnchor = this.drift.begin({ step, rates, ends: kind === 'agree' });
    if (kind === 'local') return null;
    const agreement = agreementPass(groups, this.drift.rates());
    return {
      ...agreement,
      startsAfresh: step === this.intervals.varFreezeStep + 1,
      write: (tensors, payload, kernels) => {
        this.update(tensors, settings, kernels);
        agreement.write(tensors, payload, kernels);
      },
    };
  }

  resync(applied: number, groups: readonly Readonly<AdamGroup>[]): PayloadPass | null {
    const rates = this.drift.end(applied);
    return rates && agreementPass(groups, rates);
  }
}

/** First phase: the average of the ranks' gradients. */
function gradientPass(groups: readonly Readonly<AdamGroup>[]): PayloadPass {
  return {
    startsAfresh: false,
    write({ grad, control }, payload, kernels) {
      kernels.momentPayload({ m: null, grad, payload, control, beta1: 0 });
    },
    apply(tensors, payload, kernels) {
      frozenAdam({ ...tensors, grad: payload }, required(groups[tensors.group]), kernels);
    },
  };
}

/** Second phase: the average of the ranks' movements from the anchor. `rates`: sums by group. */
function agreementPass(
  groups: readonly Readonly<AdamGroup>[],
  rates: readonly number[],
): PayloadPass {
  const epsOf = (group: number): number => required(groups[group]).eps;
  return {
    startsAfresh: false,
    write({ group, master, state, control }, payload, kernels) {
      const { anchor, exp_avg_sq: v } = state;
      const eps = epsOf(group);
      kernels.driftPayload({ master, anchor: anchor!, v: v!, payload, control, eps });
    },
    apply({ group, master, weight, state, control }, payload, kernels) {
      const { exp_avg: m, exp_avg_sq: v, anchor } = state;
      kernels.anchorAdam({
        master,
        m: m!,
        v: v!,
        anchor: anchor!,
        grad: payload,
        weight,
        control,
        rate: required(rates[group]),
        eps: epsOf(group),
      });
    },
  };
}

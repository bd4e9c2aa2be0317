// 0/1 Adam: ever fewer sums of gradients, one bit per element between them, and in the end ranks
// that update by themselves. Sources: Lu et al. 2022, arXiv:2202.06009; DeepSpeed's ZeroOneAdam.
import { type OptionNames, readOptions } from '../runtime/options.js';
import { requireInteger } from '../runtime/require-number.js';
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
  /** Default 1e-3. */
  lr?: number;
  /** Default [0.9, 0.999]. */
  betas?: readonly [number, number];
  /** Default 1e-8. */
  eps?: number;
  /** Decoupled. Default 0. */
  weightDecay?: number;
  /** Updates of the first phase, in which the second moment changes. Default 100000. */
  varFreezeStep?: number;
  /** Updates of the second moment after which they become half as frequent. Default 16. */
  varUpdateScaler?: number;
  /**
   * Updates of the second phase after which ranks agree half as often. Default 32678, as in
   * DeepSpeed.
   */
  localStepScaler?: number;
  /** The most updates from one agreement to the next. Default 16. */
  localStepClipper?: number;
}

const NAMES: OptionNames<ZeroOneAdamOptions> = {
  ...{ lr: true, betas: true, eps: true, weightDecay: true, varFreezeStep: true },
  ...{ varUpdateScaler: true, localStepScaler: true, localStepClipper: true },
};

/**
 * First phase, updates 1 to varFreezeStep: where the interval of the second moment divides the
 * update's number, AdamW without bias correction; else the average of the ranks' gradients, of one
 * bit per element with error feedback, changes m alone.
 *
 * Second phase: v stays, each rank updates m and p by its own gradients. Where the interval of
 * agreement divides the number, u becomes the ranks' average in the same way, and all ranks have
 * the same weights, the new anchor:
 *
 *   u = (p - anchor) (sqrt(v) + eps)
 *   m = -u / (sum of rates since the last agreement)
 *   p = anchor + u / (sqrt(v) + eps)
 *
 * One rank has nothing to agree on: it updates by its own gradients throughout. See
 * csrc/ops/onebit.h.
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
  /**
   * The update under way is a rank's first since the weights were the same: it starts from the
   * anchor.
   */
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

  /** The anchor is the weights themselves wherever a checkpoint is taken: ranks agree before. */
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
    const group = settings.groups[tensors.group] as AdamGroup;
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
      frozenAdam({ ...tensors, grad: payload }, groups[tensors.group] as AdamGroup, kernels);
    },
  };
}

/** Second phase: the average of how far ranks have gone. `rates` are sums by group. */
function agreementPass(
  groups: readonly Readonly<AdamGroup>[],
  rates: readonly number[],
): PayloadPass {
  const epsOf = (group: number): number => (groups[group] as AdamGroup).eps;
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
        ...{ master, m: m!, v: v!, anchor: anchor!, grad: payload, weight, control },
        ...{ rate: rates[group] as number, eps: epsOf(group) },
      });
    },
  };
}

// 0/1 Adam: first sums gradients at growing intervals, with 1-bit exchanges between them, then
// updates locally. Sources: Lu et al. 2022, arXiv:2202.06009; DeepSpeed's ZeroOneAdam.
import { namesOf, readOptions } from '../runtime/options.js';
import { requireInteger } from '../runtime/require-number.js';
import { required } from '../runtime/required.js';
import { type AdamGroup, adamDefaults } from './adam-rule.js';
import { type DeclaredState, perElement } from './declared-state.js';
import { type ExchangingOptimizer, type PayloadPass, wholeParameter } from './exchange.js';
import { updateFrozen, updateUncorrected } from './one-bit-adam.js';
import type { UpdateSettings, UpdateTensors } from './optimizer.js';
import { makeGroups, type ParamsOf } from './param-groups.js';
import { StandaloneOptimizer } from './standalone.js';
import type { UpdateKernels } from './update-kernels.js';

/** Default hyperparameters of 0/1 Adam's groups, and the lengths of its phases. */
export interface ZeroOneAdamOptions {
  /** Learning rate. Default: 1e-3. */
  lr?: number;
  /** Decay factors of the first and the second moment. Default: [0.9, 0.999]. */
  betas?: readonly [number, number];
  /** Added to the denominator of an update. Default: 1e-8. */
  eps?: number;
  /** Weight decay, decoupled from the gradient. Default: 0. */
  weightDecay?: number;
  /** Number of updates in the first phase, which changes the second moment. Default: 100000. */
  varFreezeStep?: number;
  /** Number of second-moment updates before their interval doubles. Default: 16. */
  varUpdateScaler?: number;
  /**
   * Number of updates in the second phase before the interval of synchronization doubles. Default:
   * 32678, as in DeepSpeed.
   */
  localStepScaler?: number;
  /** Largest interval of synchronization, in updates. Default: 16. */
  localStepClipper?: number;
}

/**
 * 0/1 Adam, as in DeepSpeed.
 *
 * First phase, updates 1 to varFreezeStep: if the interval of the second moment divides the number
 * of the update, the update is AdamW without bias correction. In other updates, ranks average their
 * gradients with one bit per element and error feedback, and only m changes.
 *
 * Second phase: v is constant, and each rank updates m and p by its own gradients. If the interval
 * of synchronization divides the number of the update, the ranks then average u, again with one bit
 * per element. All ranks get the same weights, which are the new anchor:
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
  /**
   * Whether the present update is the first local one since all ranks had equal weights. It stores
   * the anchor.
   */
  private leavesAnchor = false;

  /** Throws DS_ARGUMENT for an invalid option or parameter group. */
  constructor(params: ParamsOf<AdamGroup>, given: ZeroOneAdamOptions = {}) {
    super();
    const options = readOptions('ZeroOneAdam', given, namesOf.ZeroOneAdamOptions);
    this.groups = makeGroups<AdamGroup>('ZeroOneAdam', params, adamDefaults(options));
    const count = (name: keyof ZeroOneIntervals, otherwise: number, min: number): number =>
      requireInteger(`ZeroOneAdam ${name}`, options[name] ?? otherwise, min);
    this.intervals = {
      varFreezeStep: count('varFreezeStep', 100_000, 0),
      varUpdateScaler: count('varUpdateScaler', 16, 1),
      localStepScaler: count('localStepScaler', 32_678, 1),
      localStepClipper: count('localStepClipper', 16, 1),
    };
    this.phases = new ZeroOnePhases(this.intervals);
  }

  /** The anchor is not saved: before a save, the ranks synchronize, so it equals the weights. */
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

  get needsResync(): boolean {
    return this.drift.isOpen;
  }

  update(
    tensors: UpdateTensors,
    settings: UpdateSettings<AdamGroup>,
    kernels: UpdateKernels,
  ): void {
    const group = required(settings.groups[tensors.group]);
    if (this.sumsGradients(settings.step)) {
      updateUncorrected(tensors, group, kernels);
      return;
    }
    if (this.leavesAnchor) kernels.copy({ in: tensors.master, out: tensors.state.anchor! });
    updateFrozen(tensors, group, kernels);
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
      resetsErrors: step === this.intervals.varFreezeStep + 1,
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

/** Returns the exchange of the first phase: it averages the gradients of all ranks. */
function gradientPass(groups: readonly Readonly<AdamGroup>[]): PayloadPass {
  return {
    resetsErrors: false,
    write({ grad, control }, payload, kernels) {
      kernels.momentPayload({ m: null, grad, payload, control, beta1: 0 });
    },
    apply(tensors, payload, kernels) {
      updateFrozen({ ...tensors, grad: payload }, required(groups[tensors.group]), kernels);
    },
  };
}

/**
 * Returns the exchange of the second phase: it averages the distances from the anchor. `rates`: by
 * group, the sum of learning rates.
 */
function agreementPass(
  groups: readonly Readonly<AdamGroup>[],
  rates: readonly number[],
): PayloadPass {
  const epsOf = (group: number): number => required(groups[group]).eps;
  return {
    resetsErrors: false,
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

// ZeroOnePhases: the kind of each update of 0/1 Adam, by its number.

interface ZeroOneIntervals {
  /** See ZeroOneAdamOptions. */
  varFreezeStep: number;
  /** See ZeroOneAdamOptions. */
  varUpdateScaler: number;
  /** See ZeroOneAdamOptions. */
  localStepScaler: number;
  /** See ZeroOneAdamOptions. */
  localStepClipper: number;
}

/**
 * - "variance": the ranks sum gradients, and both moments change.
 * - "gradient": the ranks exchange gradients, and the first moment changes.
 * - "local": each rank updates without an exchange.
 * - "agree": each rank updates, then all ranks get the same weights.
 */
type ZeroOneStep = 'variance' | 'gradient' | 'local' | 'agree';

/** Counters after update `step`. */
interface State {
  step: number;
  varInterval: number;
  varUpdates: number;
  localInterval: number;
  localUpdates: number;
}

const START: State = {
  step: 0,
  varInterval: 1,
  varUpdates: 0,
  localInterval: 1,
  localUpdates: 0,
};

/**
 * Returns the kind of an update by its number. Continues from the last call, or restarts at update
 * 1 if the number is smaller. Source: DeepSpeed's ZeroOneAdam.
 */
class ZeroOnePhases {
  private state: State = START;
  private last: ZeroOneStep = 'variance';

  constructor(private readonly intervals: ZeroOneIntervals) {}

  /** Returns the kind of update `step`, from 1. */
  stepOf(step: number): ZeroOneStep {
    if (step < this.state.step) this.state = START;
    while (this.state.step < step) this.advance();
    return this.last;
  }

  private advance(): void {
    const { varFreezeStep } = this.intervals;
    const step = this.state.step + 1;
    this.state = { ...this.state, step };
    if (step <= varFreezeStep) this.first(this.state);
    else this.second(this.state);
  }

  private first(state: State): void {
    this.last = state.step % state.varInterval === 0 ? 'variance' : 'gradient';
    if (this.last === 'gradient' || ++state.varUpdates < this.intervals.varUpdateScaler) return;
    state.varUpdates = 0;
    state.varInterval *= 2;
  }

  private second(state: State): void {
    const { localStepScaler, localStepClipper } = this.intervals;
    this.last = state.step % state.localInterval === 0 ? 'agree' : 'local';
    if (++state.localUpdates < localStepScaler) return;
    state.localUpdates = 0;
    state.localInterval = Math.min(localStepClipper, state.localInterval * 2);
  }
}

// Drift: the local updates of a rank since all ranks had equal weights, with their learning rates.

interface LocalUpdate {
  readonly step: number;
  /** Learning rate of each group. */
  readonly rates: readonly number[];
  /** Whether all ranks have equal weights after this update. */
  readonly ends: boolean;
}

/**
 * The device may skip an update, and the host learns it later. The next update then has the number
 * of the skipped one, which replaces its record.
 */
class Drift {
  private updates: LocalUpdate[] = [];

  /**
   * Whether ranks may have different weights. The host may not know yet that an update was skipped.
   */
  get isOpen(): boolean {
    return (this.updates.at(-1)?.ends ?? true) === false || this.updates.length > 1;
  }

  /**
   * Records an update. All earlier updates are now certain. Returns whether it is the first one
   * since the weights were equal.
   */
  begin(update: LocalUpdate): boolean {
    this.keep(update.step - 1);
    this.updates.push(update);
    return this.updates.length === 1;
  }

  /** Returns, by group, the sum of learning rates since the weights were equal. */
  rates(): number[] {
    const sums: number[] = [];
    for (const { rates } of this.updates) {
      rates.forEach((rate, group) => {
        sums[group] = (sums[group] ?? 0) + rate;
      });
    }
    return sums;
  }

  /**
   * Ends the drift after update `applied`: all ranks get equal weights. Returns the sums of
   * learning rates up to this update, or null if the weights are equal already.
   */
  end(applied: number): number[] | null {
    this.keep(applied);
    const rates = this.updates.length > 0 ? this.rates() : null;
    this.updates = [];
    return rates;
  }

  /**
   * Drops records of skipped updates (numbers above `last`), and of updates before the last
   * synchronization.
   */
  private keep(last: number): void {
    const completed = this.updates.filter(({ step }) => step <= last);
    const ended = completed.findLastIndex(({ ends }) => ends);
    this.updates = completed.slice(ended + 1);
  }
}

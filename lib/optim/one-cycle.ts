// OneCycle: the learning rate rises and falls once, and the momentum does the opposite. Then both
// decay. Sources: Smith 2018, arXiv:1803.09820; DeepSpeed runtime/lr_schedules.py, OneCycle.
import { DsError } from '../errors.js';
import {
  PureSchedule,
  readSchedule,
  type ScheduleDefaults,
  type ScheduledGroup,
} from './schedule.js';

/** Second beta of groups with a scheduled momentum, as in DeepSpeed. */
const SECOND_BETA = 0.99;

/** Options of OneCycle. */
export interface OneCycleOptions {
  /** Learning rate at both ends of the cycle. */
  minLr: number;
  /** Learning rate at the peak. */
  maxLr: number;
  /**
   * Decay of the learning rate after the cycle: the rate is divided by 1 + decayLrRate * d.
   * Default: 0.
   */
  decayLrRate?: number;
  /** Number of updates while the learning rate rises. Default: 2000. */
  firstStepSize?: number;
  /**
   * Number of updates while the learning rate falls; 0: it does not fall. Default: firstStepSize.
   */
  secondStepSize?: number | null;
  /** Number of equal steps of the rise; 0: linear. Default: 0. */
  firstStairCount?: number;
  /** Number of equal steps of the fall; 0: linear. Default: firstStairCount. */
  secondStairCount?: number | null;
  /** Number of updates per unit of d; 0 disables both decays. Default: 0. */
  decayStepSize?: number;
  /** Schedule the momentum (the first beta) too. Default: true. */
  cycleMomentum?: boolean;
  /** Momentum at the peak of the learning rate, and at update 0. Default: 0.8. */
  minMomentum?: number;
  /** Momentum at the ends of the cycle. Default: 0.9. */
  maxMomentum?: number;
  /**
   * Decay of the momentum after the cycle: it is multiplied by 1 + decayMomentumRate * d. Default:
   * 0.
   */
  decayMomentumRate?: number;
}

const DEFAULTS: ScheduleDefaults<OneCycleOptions> = {
  minLr: undefined,
  maxLr: undefined,
  decayLrRate: 0,
  firstStepSize: 2000,
  secondStepSize: null,
  firstStairCount: 0,
  secondStairCount: null,
  decayStepSize: 0,
  cycleMomentum: true,
  minMomentum: 0.8,
  maxMomentum: 0.9,
  decayMomentumRate: 0,
};

/**
 * Cycles the learning rate up and down, and the momentum down and up. Then both decay. After n
 * updates, with a rise of f updates, a fall of s updates and c = n mod (f + s):
 *
 *   scale = c / f if c <= f, else (f + s - c) / s; with k stairs: floor(scale * k) / k
 *   in the cycle (n <= f + s):
 *     lr = min + (max - min) * scale; momentum = max - (max - min) * scale
 *   after it, with d = (n - f - s) / decayStepSize:
 *     lr = min / (1 + decayLrRate * d); momentum = max * (1 + decayMomentumRate * d)
 *
 * The decaying momentum may exceed 1.
 */
export class OneCycle extends PureSchedule {
  readonly name = 'OneCycle';
  private readonly options: { [K in keyof OneCycleOptions]-?: NonNullable<OneCycleOptions[K]> };

  /**
   * Throws DS_ARGUMENT for an unknown option. Throws DS_CONFIG unless the rise has at least 1
   * update, and the fall at least 0.
   */
  constructor(given: OneCycleOptions) {
    super();
    const options = readSchedule('OneCycle', given, DEFAULTS, ['minLr', 'maxLr']);
    const { firstStepSize, firstStairCount } = options;
    const secondStepSize = options.secondStepSize ?? firstStepSize;
    const secondStairCount = options.secondStairCount ?? firstStairCount;
    requireLength('cycle_first_step_size', firstStepSize, firstStepSize > 0);
    requireLength('cycle_second_step_size', secondStepSize, secondStepSize >= 0);
    this.options = { ...options, secondStepSize, secondStairCount };
  }

  lr(appliedSteps: number): number {
    const { minLr, maxLr, decayLrRate } = this.options;
    if (this.inCycle(appliedSteps)) return minLr + (maxLr - minLr) * this.scale(appliedSteps);
    return minLr / (1 + decayLrRate * this.decayIntervals(appliedSteps));
  }

  /**
   * Returns the first beta after `appliedSteps` updates, or null if it is not scheduled. Update 0
   * uses the minimum, as in DeepSpeed, although the cycle begins at the maximum.
   */
  momentum(appliedSteps: number): number | null {
    const { cycleMomentum, minMomentum, maxMomentum, decayMomentumRate } = this.options;
    if (!cycleMomentum) return null;
    if (appliedSteps === 0) return minMomentum;
    if (this.inCycle(appliedSteps)) {
      return maxMomentum - (maxMomentum - minMomentum) * this.scale(appliedSteps);
    }
    return maxMomentum * (1 + decayMomentumRate * this.decayIntervals(appliedSteps));
  }

  override apply(group: ScheduledGroup, appliedSteps: number): void {
    super.apply(group, appliedSteps);
    const momentum = this.momentum(appliedSteps);
    if (momentum !== null && group.betas) group.betas = [momentum, SECOND_BETA];
  }

  private get cycleSize(): number {
    return this.options.firstStepSize + this.options.secondStepSize;
  }

  private inCycle(appliedSteps: number): boolean {
    return appliedSteps - 1 < this.cycleSize;
  }

  /** Returns the position between the ends (0) and the peak (1) of the cycle. */
  private scale(appliedSteps: number): number {
    const { firstStepSize, secondStepSize, firstStairCount, secondStairCount } = this.options;
    const offset = appliedSteps % this.cycleSize;
    return offset <= firstStepSize
      ? roundToStairs(offset, firstStepSize, firstStairCount)
      : roundToStairs(this.cycleSize - offset, secondStepSize, secondStairCount);
  }

  private decayIntervals(appliedSteps: number): number {
    const { decayStepSize } = this.options;
    return decayStepSize === 0 ? 0 : (appliedSteps - this.cycleSize) / decayStepSize;
  }
}

/**
 * Returns position / length. If count > 0, rounds it down to a multiple of 1 / count. The
 * multiplication comes before the division, so that a position exactly on a stair does not fall
 * below it.
 */
function roundToStairs(position: number, length: number, count: number): number {
  return count > 0 ? Math.floor((position * count) / length) / count : position / length;
}

function requireLength(key: string, value: number, valid: boolean): void {
  if (valid) return;
  throw new DsError({
    code: 'DS_CONFIG',
    op: `scheduler.params.${key}`,
    expected: 'a number of updates (the first half at least 1)',
    got: String(value),
  });
}

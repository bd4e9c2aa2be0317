// WarmupLR: from a minimum to a maximum learning rate over the first updates, then constant.
// Source: DeepSpeed runtime/lr_schedules.py, WarmupLR.
import type { OptionNames } from '../runtime/options.js';
import { PureSchedule, readSchedule, requireWarmup } from './schedule.js';

/** The shape of the rise. DeepSpeed's default is "log". */
export type WarmupType = 'log' | 'linear';

/** Options of WarmupLr. */
export interface WarmupOptions {
  /** Learning rate before the first update. Default: 0. */
  minLr?: number;
  /** Learning rate after the warm-up. */
  maxLr: number;
  /** Updates of the warm-up; values below 2 count as 2. Default: 1000. */
  warmupSteps?: number;
  /** Default: "log". */
  warmupType?: WarmupType;
}

export const WARMUP: OptionNames<WarmupOptions> = {
  ...{ minLr: true, maxLr: true, warmupSteps: true, warmupType: true },
};

/**
 * Returns the rise from 0 to 1 over `steps` (at least 2) updates, at iteration t >= 0:
 *
 * - "log": ln(t + 1) / ln(steps), which reaches 1 at t = steps - 1.
 * - "linear": t / steps, which reaches 1 at t = steps.
 */
export function warmupFraction(t: number, steps: number, type: WarmupType): number {
  if (t >= steps) return 1;
  return type === 'log' ? (1 / Math.log(steps)) * Math.log(t + 1) : t / steps;
}

/**
 * lr = min + (max - min) * fraction. The first two updates both run at the minimum, because
 * iteration -1 (no applied update) and iteration 0 both give it. Throws DS_CONFIG for an invalid
 * number of steps.
 */
export class WarmupLr extends PureSchedule {
  readonly name: string = 'WarmupLR';
  protected readonly minLr: number;
  protected readonly maxLr: number;
  protected readonly warmupSteps: number;
  private readonly warmupType: WarmupType;

  constructor(given: WarmupOptions) {
    super();
    const options = readSchedule('WarmupLR', given, WARMUP, ['maxLr']);
    const { minLr = 0, maxLr, warmupSteps = 1000, warmupType = 'log' } = options;
    requireWarmup('scheduler.params.warmup_num_steps', warmupSteps);
    this.minLr = minLr;
    this.maxLr = maxLr;
    this.warmupSteps = Math.max(2, warmupSteps);
    this.warmupType = warmupType;
  }

  lr(appliedSteps: number): number {
    const t = appliedSteps - 1;
    return t < 0 ? this.minLr : this.minLr + (this.maxLr - this.minLr) * this.fraction(t);
  }

  /** Position between the two learning rates at iteration `t` >= 0. */
  protected fraction(t: number): number {
    return warmupFraction(t, this.warmupSteps, this.warmupType);
  }
}

// WarmupCosineLR: a fraction of the optimizer's learning rate that rises, then follows half a
// cosine down.
// Source: DeepSpeed runtime/lr_schedules.py, WarmupCosineLR.
import type { OptionNames } from '../runtime/options.js';
import { PureSchedule, readSchedule, requirePositiveInteger, requireWarmup } from './schedule.js';
import { type WarmupType, warmupFraction } from './warmup.js';

/** Options of WarmupCosineLr. */
export interface WarmupCosineOptions {
  /** The optimizer's learning rate. The schedule sets fractions of it. */
  baseLr: number;
  /** Updates of the whole run, including warm-up. */
  totalSteps: number;
  /** Fraction at the start of the warm-up. Default: 0. */
  warmupMinRatio?: number;
  /** Updates of the warm-up; values below 2 count as 2. Default: 1000. */
  warmupSteps?: number;
  /** Fraction at the end. Default: 1e-4. */
  cosMinRatio?: number;
  /** Default: "log". */
  warmupType?: WarmupType;
}

const NAMES: OptionNames<WarmupCosineOptions> = {
  baseLr: true,
  totalSteps: true,
  warmupMinRatio: true,
  warmupSteps: true,
  cosMinRatio: true,
  warmupType: true,
};

/**
 * Before the first update the fraction is 0. Warm-up: wmin + (1 - wmin) * fraction. Afterwards
 * max(0, cmin + (1 - cmin) * (1 + cos(pi p)) / 2) with
 * p = min(1, (t - warmup + 1) / max(1, total - warmup)).
 */
export class WarmupCosineLr extends PureSchedule {
  readonly name = 'WarmupCosineLR';
  private readonly options: Required<WarmupCosineOptions>;

  constructor(given: WarmupCosineOptions) {
    super();
    const options = readSchedule('WarmupCosineLR', given, NAMES, ['baseLr']);
    const { warmupMinRatio = 0, warmupSteps = 1000, cosMinRatio = 1e-4 } = options;
    requireWarmup('scheduler.params.warmup_num_steps', warmupSteps);
    requirePositiveInteger('scheduler.params.total_num_steps', options.totalSteps);
    this.options = {
      ...options,
      warmupMinRatio,
      warmupSteps: Math.max(2, warmupSteps),
      cosMinRatio,
      warmupType: options.warmupType ?? 'log',
    };
  }

  lr(appliedSteps: number): number {
    const t = appliedSteps - 1;
    return t < 0 ? 0 : this.options.baseLr * this.ratio(t);
  }

  private ratio(t: number): number {
    const { warmupSteps, totalSteps, warmupMinRatio, cosMinRatio, warmupType } = this.options;
    if (t < warmupSteps) {
      return warmupMinRatio + (1 - warmupMinRatio) * warmupFraction(t, warmupSteps, warmupType);
    }
    const progress = Math.min(1, (t - warmupSteps + 1) / Math.max(1, totalSteps - warmupSteps));
    const wave = (1 + Math.cos(Math.PI * progress)) / 2;
    return Math.max(0, cosMinRatio + (1 - cosMinRatio) * wave);
  }
}

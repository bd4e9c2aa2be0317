// Learning-rate schedules of DeepSpeed with a warm-up.
import {
  PureSchedule,
  readSchedule,
  requirePositiveInteger,
  requireWarmup,
  type ScheduleWord,
} from './schedule.js';

// WarmupLR: rises from a minimum to a maximum learning rate, then stays constant.
// Source: DeepSpeed runtime/lr_schedules.py, WarmupLR.

/** The shape of the rise. DeepSpeed's default is "log". */
export type WarmupType = ScheduleWord<'warmupType'>;

/** Options of WarmupLr. */
export interface WarmupOptions {
  /** Learning rate before the first update. Default: 0. */
  minLr?: number;
  /** Learning rate after the warm-up. */
  maxLr: number;
  /** Number of updates of the warm-up; 0 and 1 count as 2. Default: 1000. */
  warmupSteps?: number;
  /** Shape of the rise. Default: "log". */
  warmupType?: WarmupType;
}

const WARMUP = { minLr: 0, maxLr: undefined, warmupSteps: 1000, warmupType: 'log' } as const;

/**
 * Returns the fraction of the warm-up, from 0 to 1, at iteration t >= 0. `steps` is at least 2:
 *
 * - "log": ln(t + 1) / ln(steps), which reaches 1 at t = steps - 1.
 * - "linear": t / steps, which reaches 1 at t = steps.
 */
function warmupFraction(t: number, steps: number, type: WarmupType): number {
  if (t >= steps) return 1;
  return type === 'log' ? (1 / Math.log(steps)) * Math.log(t + 1) : t / steps;
}

/**
 * Raises the learning rate from `min` to `max`, then keeps it: lr = min + (max - min) * fraction.
 * DeepSpeed counts iterations from -1 (before the first update), and both -1 and 0 give the
 * minimum. Therefore the first two updates use the minimum.
 */
export class WarmupLr extends PureSchedule {
  readonly name: string = 'WarmupLR';
  protected readonly minLr: number;
  protected readonly maxLr: number;
  protected readonly warmupSteps: number;
  private readonly warmupType: WarmupType;

  /** Throws DS_ARGUMENT without `maxLr`, DS_CONFIG unless `warmupSteps` is an integer from 0. */
  constructor(given: WarmupOptions) {
    super();
    const options = readSchedule('WarmupLR', given, WARMUP, ['maxLr']);
    const { minLr, maxLr, warmupSteps, warmupType } = options;
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

  /** Returns the position between the two learning rates at iteration `t` >= 0. */
  protected fraction(t: number): number {
    return warmupFraction(t, this.warmupSteps, this.warmupType);
  }
}

// WarmupDecayLR: WarmupLR, then a linear decay that ends at the minimum with the last update.
// Source: DeepSpeed runtime/lr_schedules.py, WarmupDecayLR.

/** Options of WarmupDecayLr. */
export interface WarmupDecayOptions extends WarmupOptions {
  /** Number of updates of the whole run, including the warm-up. */
  totalSteps: number;
}

/**
 * Raises the learning rate, then decays it linearly to `min`. After the warm-up: fraction = max(0,
 * (total - t) / max(1, total - warmup)).
 */
export class WarmupDecayLr extends WarmupLr {
  override readonly name = 'WarmupDecayLR';
  private readonly totalSteps: number;

  /** Throws DS_ARGUMENT without `maxLr`, DS_CONFIG unless `totalSteps` is an integer from 1. */
  constructor(given: WarmupDecayOptions) {
    const defaults = { ...WARMUP, totalSteps: undefined };
    const { totalSteps, ...warmup } = readSchedule('WarmupDecayLR', given, defaults, ['maxLr']);
    super(warmup);
    requirePositiveInteger('scheduler.params.total_num_steps', totalSteps);
    this.totalSteps = totalSteps;
  }

  protected override fraction(t: number): number {
    if (t < this.warmupSteps) return super.fraction(t);
    return Math.max(0, (this.totalSteps - t) / Math.max(1, this.totalSteps - this.warmupSteps));
  }
}

// WarmupCosineLR: a fraction of the optimizer's learning rate rises, then falls along half a
// cosine. Source: DeepSpeed runtime/lr_schedules.py, WarmupCosineLR.

/** Options of WarmupCosineLr. */
export interface WarmupCosineOptions {
  /** The optimizer's learning rate. The schedule sets fractions of it. */
  baseLr: number;
  /** Number of updates of the whole run, including the warm-up. */
  totalSteps: number;
  /** Fraction at the start of the warm-up. Default: 0. */
  warmupMinRatio?: number;
  /** Number of updates of the warm-up; 0 and 1 count as 2. Default: 1000. */
  warmupSteps?: number;
  /** Fraction at the end. Default: 1e-4. */
  cosMinRatio?: number;
  /** Shape of the rise. Default: "log". */
  warmupType?: WarmupType;
}

/**
 * Raises the learning rate, then decays it along half a cosine. The rate is the base rate times a
 * fraction:
 *
 *   before the first update: 0
 *   in the warm-up: wmin + (1 - wmin) * warm-up fraction
 *   after it: max(0, cmin + (1 - cmin) * (1 + cos(pi p)) / 2)
 *     with p = min(1, (t - warmup + 1) / max(1, total - warmup))
 */
export class WarmupCosineLr extends PureSchedule {
  readonly name = 'WarmupCosineLR';
  private readonly options: Required<WarmupCosineOptions>;

  /**
   * Throws DS_ARGUMENT for an unknown option, DS_CONFIG unless `totalSteps` is an integer from 1.
   */
  constructor(given: WarmupCosineOptions) {
    super();
    const options = readSchedule('WarmupCosineLR', given, {
      baseLr: undefined,
      totalSteps: undefined,
      warmupMinRatio: 0,
      warmupSteps: 1000,
      cosMinRatio: 1e-4,
      warmupType: 'log',
    });
    requireWarmup('scheduler.params.warmup_num_steps', options.warmupSteps);
    requirePositiveInteger('scheduler.params.total_num_steps', options.totalSteps);
    this.options = { ...options, warmupSteps: Math.max(2, options.warmupSteps) };
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

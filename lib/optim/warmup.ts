// Schedules of DeepSpeed with a warm-up.
import {
  PureSchedule,
  readSchedule,
  requirePositiveInteger,
  requireWarmup,
  type ScheduleWord,
} from './schedule.js';

// WarmupLR: from a minimum to a maximum learning rate over the first updates, then constant.
// Source: DeepSpeed runtime/lr_schedules.py, WarmupLR.

/** The shape of the rise. DeepSpeed's default is "log". */
export type WarmupType = ScheduleWord<'warmupType'>;

/** Options of WarmupLr. */
export interface WarmupOptions {
  /** Learning rate before the first update. Default: 0. */
  minLr?: number;
  /** Learning rate after the warm-up. */
  maxLr: number;
  /** Updates of the warm-up; values below 2 count as 2. Default: 1000. */
  warmupSteps?: number;
  /** How the rate grows in the warm-up. Default: "log". */
  warmupType?: WarmupType;
}

const WARMUP = { minLr: 0, maxLr: undefined, warmupSteps: 1000, warmupType: 'log' } as const;

/**
 * Returns the rise from 0 to 1 over `steps` (at least 2) updates, at iteration t >= 0:
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
 * The first two updates both run at the minimum, because iteration -1 (no applied update) and
 * iteration 0 both give it. Throws DS_CONFIG for an invalid number of steps.
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

// WarmupDecayLR: WarmupLR, then linear decay to the minimum learning rate at the last update.
// Source: DeepSpeed runtime/lr_schedules.py, WarmupDecayLR.

/** Options of WarmupDecayLr. */
export interface WarmupDecayOptions extends WarmupOptions {
  /** Updates of the whole run, including warm-up. */
  totalSteps: number;
}

/**
 * Warms the learning rate up, then decays it linearly to `min`. After the warm-up: fraction =
 * max(0, (total - t) / max(1, total - warmup)).
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

// WarmupCosineLR: a fraction of the optimizer's learning rate that rises, then follows half a
// cosine down.
// Source: DeepSpeed runtime/lr_schedules.py, WarmupCosineLR.

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
  /** How the rate grows in the warm-up. Default: "log". */
  warmupType?: WarmupType;
}

/**
 * Warms the learning rate up, then decays it along half a cosine. Before the first update the
 * fraction is 0. Warm-up: wmin + (1 - wmin) * fraction. Afterwards
 * max(0, cmin + (1 - cmin) * (1 + cos(pi p)) / 2) with
 * p = min(1, (t - warmup + 1) / max(1, total - warmup)).
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

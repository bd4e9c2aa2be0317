// WarmupDecayLR: WarmupLR, then a straight line down to the minimum rate at the last update.
// Source: DeepSpeed runtime/lr_schedules.py, WarmupDecayLR.
import { requirePositiveInteger } from './schedule.js';
import { WarmupLr, type WarmupOptions } from './warmup.js';

export interface WarmupDecayOptions extends WarmupOptions {
  /** Updates of the whole run, warm-up included. */
  totalSteps: number;
}

/** After the warm-up: fraction = max(0, (total - t) / max(1, total - warmup)). */
export class WarmupDecayLr extends WarmupLr {
  override readonly name = 'WarmupDecayLR';
  private readonly totalSteps: number;

  constructor(options: WarmupDecayOptions) {
    super(options);
    requirePositiveInteger('scheduler.params.total_num_steps', options.totalSteps);
    this.totalSteps = options.totalSteps;
  }

  protected override fraction(t: number): number {
    if (t < this.warmupSteps) return super.fraction(t);
    return Math.max(0, (this.totalSteps - t) / Math.max(1, this.totalSteps - this.warmupSteps));
  }
}

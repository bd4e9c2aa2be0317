// WarmupDecayLR: WarmupLR, then linear decay to the minimum learning rate at the last update.
// Source: DeepSpeed runtime/lr_schedules.py, WarmupDecayLR.
import type { OptionNames } from '../runtime/options.js';
import { readSchedule, requirePositiveInteger } from './schedule.js';
import { WARMUP, WarmupLr, type WarmupOptions } from './warmup.js';

/** Options of WarmupDecayLr. */
export interface WarmupDecayOptions extends WarmupOptions {
  /** Updates of the whole run, including warm-up. */
  totalSteps: number;
}

const NAMES: OptionNames<WarmupDecayOptions> = { ...WARMUP, totalSteps: true };

/** After the warm-up: fraction = max(0, (total - t) / max(1, total - warmup)). */
export class WarmupDecayLr extends WarmupLr {
  override readonly name = 'WarmupDecayLR';
  private readonly totalSteps: number;

  constructor(given: WarmupDecayOptions) {
    const options = readSchedule('WarmupDecayLR', given, NAMES, ['maxLr']);
    const { totalSteps, ...warmup } = options;
    super(warmup);
    requirePositiveInteger('scheduler.params.total_num_steps', totalSteps);
    this.totalSteps = totalSteps;
  }

  protected override fraction(t: number): number {
    if (t < this.warmupSteps) return super.fraction(t);
    return Math.max(0, (this.totalSteps - t) / Math.max(1, this.totalSteps - this.warmupSteps));
  }
}

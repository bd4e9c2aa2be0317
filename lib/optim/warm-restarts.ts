// CosineAnnealingWarmRestarts: half a cosine down to a minimum, again and again from the top, each
// as long or longer. Sources: Loshchilov & Hutter 2017, arXiv:1608.03983 (SGDR); PyTorch
// torch.optim.lr_scheduler.
import type { OptionNames } from '../runtime/options.js';
import { PureSchedule, readSchedule, requirePositiveInteger } from './schedule.js';

/** Options of CosineAnnealingWarmRestarts. */
export interface WarmRestartsOptions {
  /** Rate after each restart. */
  baseLr: number;
  /** Updates until the first restart. */
  firstPeriod: number;
  /** Each period is this many times as long as the one before. Default 1. */
  growth?: number;
  /** Rate at the bottom, which no update has. Default 0. */
  minLr?: number;
}

const NAMES: OptionNames<WarmRestartsOptions> = {
  ...{ baseLr: true, firstPeriod: true, growth: true, minLr: true },
};

/**
 * lr = min + (base - min) * (1 + cos(pi k / T)) / 2, k updates after the last restart and T updates
 * before the next one. Throws DS_CONFIG unless period and growth are positive integers.
 */
export class CosineAnnealingWarmRestarts extends PureSchedule {
  readonly name = 'CosineAnnealingWarmRestarts';
  private readonly options: Required<WarmRestartsOptions>;

  constructor(given: WarmRestartsOptions) {
    super();
    const options = readSchedule('CosineAnnealingWarmRestarts', given, NAMES, ['baseLr']);
    const { baseLr, firstPeriod, growth = 1, minLr = 0 } = options;
    requirePositiveInteger('scheduler.params.T_0', firstPeriod);
    requirePositiveInteger('scheduler.params.T_mult', growth);
    this.options = { baseLr, firstPeriod, growth, minLr };
  }

  lr(appliedSteps: number): number {
    const { baseLr, minLr } = this.options;
    const [since, period] = this.place(appliedSteps);
    return minLr + ((baseLr - minLr) * (1 + Math.cos((Math.PI * since) / period))) / 2;
  }

  /** Updates since the last restart, and of the present period. */
  private place(appliedSteps: number): [since: number, period: number] {
    const { firstPeriod, growth } = this.options;
    if (growth === 1) return [appliedSteps % firstPeriod, firstPeriod];
    let [since, period] = [appliedSteps, firstPeriod];
    while (since >= period) {
      since -= period;
      period *= growth;
    }
    return [since, period];
  }
}

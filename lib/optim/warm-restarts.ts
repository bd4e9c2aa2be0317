// CosineAnnealingWarmRestarts: half a cosine down to a minimum, restarted with equal or longer
// periods. Sources: Loshchilov & Hutter 2017, arXiv:1608.03983 (SGDR); PyTorch
// torch.optim.lr_scheduler.
import type { OptionNames } from '../runtime/options.js';
import { PureSchedule, readSchedule, requirePositiveInteger } from './schedule.js';

/** Options of CosineAnnealingWarmRestarts. */
export interface WarmRestartsOptions {
  /** Learning rate after each restart. */
  baseLr: number;
  /** Updates until the first restart. */
  firstPeriod: number;
  /** Factor of each period relative to the previous one. Default: 1. */
  growth?: number;
  /** Minimum learning rate, which no update reaches. Default: 0. */
  minLr?: number;
}

const NAMES: OptionNames<WarmRestartsOptions> = {
  ...{ baseLr: true, firstPeriod: true, growth: true, minLr: true },
};

/**
 * lr = min + (base - min) * (1 + cos(pi k / T)) / 2, with k updates since the last restart and T
 * updates per period. Throws DS_CONFIG unless period and growth are positive integers.
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
    const [since, period] = this.restartOf(appliedSteps);
    return minLr + ((baseLr - minLr) * (1 + Math.cos((Math.PI * since) / period))) / 2;
  }

  /** Updates since the last restart, and updates of the present period. */
  private restartOf(appliedSteps: number): [since: number, period: number] {
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

// Learning-rate schedules of PyTorch that follow half a cosine.
import { PureSchedule, readSchedule, requirePositiveInteger } from './schedule.js';

// CosineAnnealingLR: falls along half a cosine to a minimum, rises again, and repeats.
// Sources: Loshchilov & Hutter 2017, arXiv:1608.03983; PyTorch torch.optim.lr_scheduler.

/** Options of CosineAnnealingLr. */
export interface CosineAnnealingOptions {
  /** Learning rate of the first update. */
  baseLr: number;
  /** Number of updates in half a period. */
  halfPeriod: number;
  /** Minimum learning rate. Default: 0. */
  minLr?: number;
}

/**
 * Decays the learning rate along half a cosine. After n updates:
 *
 *   lr = min + (base - min) * (1 + cos(pi n / T)) / 2, where T is halfPeriod
 */
export class CosineAnnealingLr extends PureSchedule {
  readonly name = 'CosineAnnealingLR';
  private readonly options: Required<CosineAnnealingOptions>;

  /**
   * Throws DS_ARGUMENT for an unknown option, DS_CONFIG unless `halfPeriod` is an integer from 1.
   */
  constructor(given: CosineAnnealingOptions) {
    super();
    this.options = readSchedule('CosineAnnealingLR', given, {
      baseLr: undefined,
      halfPeriod: undefined,
      minLr: 0,
    });
    requirePositiveInteger('scheduler.params.T_max', this.options.halfPeriod);
  }

  lr(appliedSteps: number): number {
    const { baseLr, halfPeriod, minLr } = this.options;
    const wave = (1 + Math.cos((Math.PI * appliedSteps) / halfPeriod)) / 2;
    return minLr + (baseLr - minLr) * wave;
  }
}

// CosineAnnealingWarmRestarts: falls along half a cosine to a minimum, then restarts. Periods are
// equal or grow. Sources: Loshchilov & Hutter 2017, arXiv:1608.03983 (SGDR); PyTorch
// torch.optim.lr_scheduler.

/** Options of CosineAnnealingWarmRestarts. */
export interface WarmRestartsOptions {
  /** Learning rate after each restart. */
  baseLr: number;
  /** Number of updates before the first restart. */
  firstPeriod: number;
  /** Length of each period relative to the previous one. Default: 1. */
  growth?: number;
  /** Minimum learning rate. No update reaches it. Default: 0. */
  minLr?: number;
}

/**
 * Repeats a cosine decay of the learning rate. With k updates since the last restart, and T updates
 * in the present period:
 *
 *   lr = min + (base - min) * (1 + cos(pi k / T)) / 2
 */
export class CosineAnnealingWarmRestarts extends PureSchedule {
  readonly name = 'CosineAnnealingWarmRestarts';
  private readonly options: Required<WarmRestartsOptions>;

  /** Throws DS_CONFIG unless `firstPeriod` and `growth` are integers from 1. */
  constructor(given: WarmRestartsOptions) {
    super();
    this.options = readSchedule('CosineAnnealingWarmRestarts', given, {
      baseLr: undefined,
      firstPeriod: undefined,
      growth: 1,
      minLr: 0,
    });
    requirePositiveInteger('scheduler.params.T_0', this.options.firstPeriod);
    requirePositiveInteger('scheduler.params.T_mult', this.options.growth);
  }

  lr(appliedSteps: number): number {
    const { baseLr, minLr } = this.options;
    const [since, period] = this.restartOf(appliedSteps);
    return minLr + ((baseLr - minLr) * (1 + Math.cos((Math.PI * since) / period))) / 2;
  }

  /** Returns the number of updates since the last restart, and the length of the present period. */
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

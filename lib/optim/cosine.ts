// Schedules of PyTorch that follow half a cosine.
import { PureSchedule, readSchedule, requirePositiveInteger } from './schedule.js';

// CosineAnnealingLR: half a cosine down to a minimum, then up again, repeated.
// Sources: Loshchilov & Hutter 2017, arXiv:1608.03983; PyTorch torch.optim.lr_scheduler.

/** Options of CosineAnnealingLr. */
export interface CosineAnnealingOptions {
  /** Learning rate of the first update. */
  baseLr: number;
  /** Updates in half a period. */
  halfPeriod: number;
  /** Minimum learning rate. Default: 0. */
  minLr?: number;
}

/**
 * Decays the learning rate along half a cosine: lr = min + (base - min) * (1 + cos(pi n / T)) / 2
 * after n updates; T is `halfPeriod`. Throws DS_CONFIG unless T is a positive integer.
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

// CosineAnnealingWarmRestarts: half a cosine down to a minimum, restarted with equal or longer
// periods. Sources: Loshchilov & Hutter 2017, arXiv:1608.03983 (SGDR); PyTorch
// torch.optim.lr_scheduler.

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

/**
 * Repeats a cosine decay of the learning rate: lr = min + (base - min) * (1 + cos(pi k / T)) / 2,
 * with k updates since the last restart and T updates per period. Throws DS_CONFIG unless period
 * and growth are positive integers.
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

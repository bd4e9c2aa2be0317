// CosineAnnealingLR: half a cosine down to a minimum, then up again, repeated.
// Sources: Loshchilov & Hutter 2017, arXiv:1608.03983; PyTorch torch.optim.lr_scheduler.
import type { OptionNames } from '../runtime/options.js';
import { PureSchedule, readSchedule, requirePositiveInteger } from './schedule.js';

/** Options of CosineAnnealingLr. */
export interface CosineAnnealingOptions {
  /** Learning rate of the first update. */
  baseLr: number;
  /** Updates in half a period. */
  halfPeriod: number;
  /** Minimum learning rate. Default: 0. */
  minLr?: number;
}

const NAMES: OptionNames<CosineAnnealingOptions> = { baseLr: true, halfPeriod: true, minLr: true };

/**
 * lr = min + (base - min) * (1 + cos(pi n / T)) / 2 after n updates; T is `halfPeriod`. Throws
 * DS_CONFIG unless T is a positive integer.
 */
export class CosineAnnealingLr extends PureSchedule {
  readonly name = 'CosineAnnealingLR';
  private readonly options: Required<CosineAnnealingOptions>;

  constructor(given: CosineAnnealingOptions) {
    super();
    const {
      baseLr,
      halfPeriod,
      minLr = 0,
    } = readSchedule('CosineAnnealingLR', given, NAMES, ['baseLr']);
    requirePositiveInteger('scheduler.params.T_max', halfPeriod);
    this.options = { baseLr, halfPeriod, minLr };
  }

  lr(appliedSteps: number): number {
    const { baseLr, halfPeriod, minLr } = this.options;
    const wave = (1 + Math.cos((Math.PI * appliedSteps) / halfPeriod)) / 2;
    return minLr + (baseLr - minLr) * wave;
  }
}

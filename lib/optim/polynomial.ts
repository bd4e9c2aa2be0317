// PolynomialLR: a power of the remaining fraction of updates, then zero.
// Source: PyTorch torch.optim.lr_scheduler.PolynomialLR.
import type { OptionNames } from '../runtime/options.js';
import { PureSchedule, readSchedule, requirePositiveInteger } from './schedule.js';

/** Options of PolynomialLr. */
export interface PolynomialOptions {
  /** Learning rate of the first update. */
  baseLr: number;
  /** Updates until the learning rate is zero. Default: 5. */
  totalSteps?: number;
  /** Exponent; 1: linear. Default: 1. */
  power?: number;
}

const NAMES: OptionNames<PolynomialOptions> = { baseLr: true, totalSteps: true, power: true };

/**
 * lr = base * (1 - min(n, total) / total)^power after n updates. Throws DS_CONFIG unless the total
 * is a positive integer.
 */
export class PolynomialLr extends PureSchedule {
  readonly name = 'PolynomialLR';
  private readonly options: Required<PolynomialOptions>;

  constructor(given: PolynomialOptions) {
    super();
    const {
      baseLr,
      totalSteps = 5,
      power = 1,
    } = readSchedule('PolynomialLR', given, NAMES, ['baseLr']);
    requirePositiveInteger('scheduler.params.total_iters', totalSteps);
    this.options = { baseLr, totalSteps, power };
  }

  lr(appliedSteps: number): number {
    const { baseLr, totalSteps, power } = this.options;
    return baseLr * ((totalSteps - Math.min(appliedSteps, totalSteps)) / totalSteps) ** power;
  }
}

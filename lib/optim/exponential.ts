// ExponentialLR: multiplies the learning rate by a factor after every update.
// Source: PyTorch torch.optim.lr_scheduler.ExponentialLR.
import type { OptionNames } from '../runtime/options.js';
import { PureSchedule, readSchedule } from './schedule.js';

/** Options of ExponentialLr. */
export interface ExponentialOptions {
  /** Learning rate of the first update. */
  baseLr: number;
  /** Factor of the rate at every update. */
  gamma: number;
}

const NAMES: OptionNames<ExponentialOptions> = { baseLr: true, gamma: true };

/** lr = base * gamma^n after n updates. */
export class ExponentialLr extends PureSchedule {
  readonly name = 'ExponentialLR';

  private readonly options: ExponentialOptions;

  /** Throws DS_ARGUMENT. */
  constructor(given: ExponentialOptions) {
    super();
    this.options = readSchedule('ExponentialLR', given, NAMES, ['baseLr', 'gamma']);
  }

  lr(appliedSteps: number): number {
    return this.options.baseLr * this.options.gamma ** appliedSteps;
  }
}

// ExponentialLR: multiplies the rate by a factor after every update.
// Source: PyTorch torch.optim.lr_scheduler.ExponentialLR.
import { PureSchedule } from './schedule.js';

export interface ExponentialOptions {
  /** Rate of the first update. */
  baseLr: number;
  /** The factor. */
  gamma: number;
}

/** lr = base * gamma^n after n updates. */
export class ExponentialLr extends PureSchedule {
  readonly name = 'ExponentialLR';

  constructor(private readonly options: ExponentialOptions) {
    super();
  }

  lr(appliedSteps: number): number {
    return this.options.baseLr * this.options.gamma ** appliedSteps;
  }
}

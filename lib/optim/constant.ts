// ConstantLR: a share of the rate for the first updates, then all of it.
// Source: PyTorch torch.optim.lr_scheduler.ConstantLR.
import { PureSchedule } from './schedule.js';

export interface ConstantOptions {
  /** The full rate. */
  baseLr: number;
  /** The share. Default 1/3. */
  factor?: number;
  /** Updates that run at the share. Default 5. */
  steps?: number;
}

/** lr = base * factor for the first `steps` updates, base afterwards. */
export class ConstantLr extends PureSchedule {
  readonly name = 'ConstantLR';
  private readonly options: Required<ConstantOptions>;

  constructor({ baseLr, factor = 1 / 3, steps = 5 }: ConstantOptions) {
    super();
    this.options = { baseLr, factor, steps };
  }

  lr(appliedSteps: number): number {
    const { baseLr, factor, steps } = this.options;
    return appliedSteps < steps ? baseLr * factor : baseLr;
  }
}

// StepLR: multiplies the learning rate by a factor at regular intervals.
// Source: PyTorch torch.optim.lr_scheduler.StepLR.
import type { OptionNames } from '../runtime/options.js';
import { PureSchedule, readSchedule, requirePositiveInteger } from './schedule.js';

/** Options of StepLr. */
export interface StepOptions {
  /** Learning rate of the first update. */
  baseLr: number;
  /** Updates between two multiplications. */
  stepSize: number;
  /** The factor. Default: 0.1. */
  gamma?: number;
}

const NAMES: OptionNames<StepOptions> = { baseLr: true, stepSize: true, gamma: true };

/**
 * lr = base * gamma^floor(n / size) after n updates. Throws DS_CONFIG unless the size is a positive
 * integer.
 */
export class StepLr extends PureSchedule {
  readonly name = 'StepLR';
  private readonly options: Required<StepOptions>;

  constructor(given: StepOptions) {
    super();
    const { baseLr, stepSize, gamma = 0.1 } = readSchedule('StepLR', given, NAMES, ['baseLr']);
    requirePositiveInteger('scheduler.params.step_size', stepSize);
    this.options = { baseLr, stepSize, gamma };
  }

  lr(appliedSteps: number): number {
    const { baseLr, stepSize, gamma } = this.options;
    return baseLr * gamma ** Math.floor(appliedSteps / stepSize);
  }
}

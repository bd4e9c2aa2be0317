// LinearLR: linear from one fraction of the learning rate to another, then constant.
// Source: PyTorch torch.optim.lr_scheduler.LinearLR.
import type { OptionNames } from '../runtime/options.js';
import { PureSchedule, readSchedule, requirePositiveInteger } from './schedule.js';

/** Options of LinearLr. */
export interface LinearOptions {
  /** Base learning rate. */
  baseLr: number;
  /** Fraction at the first update. Default: 1/3. */
  startFactor?: number;
  /** Fraction from update `steps` on. Default: 1. */
  endFactor?: number;
  /** Number of linear updates. Default: 5. */
  steps?: number;
}

const NAMES: OptionNames<LinearOptions> = {
  ...{ baseLr: true, startFactor: true, endFactor: true, steps: true },
};

/**
 * lr = base * (start + (end - start) * min(n, steps) / steps) after n updates. Throws DS_CONFIG for
 * an invalid number of steps.
 */
export class LinearLr extends PureSchedule {
  readonly name = 'LinearLR';
  private readonly options: Required<LinearOptions>;

  constructor(given: LinearOptions) {
    super();
    const options = readSchedule('LinearLR', given, NAMES, ['baseLr']);
    const { baseLr, startFactor = 1 / 3, endFactor = 1, steps = 5 } = options;
    requirePositiveInteger('scheduler.params.total_iters', steps);
    this.options = { baseLr, startFactor, endFactor, steps };
  }

  lr(appliedSteps: number): number {
    const { baseLr, startFactor, endFactor, steps } = this.options;
    const progress = Math.min(appliedSteps, steps) / steps;
    return baseLr * (startFactor + (endFactor - startFactor) * progress);
  }
}

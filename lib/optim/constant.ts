// ConstantLR: a fraction of the learning rate for the first updates, then all of it.
// Source: PyTorch torch.optim.lr_scheduler.ConstantLR.
import type { OptionNames } from '../runtime/options.js';
import { PureSchedule, readSchedule } from './schedule.js';

/** Options of ConstantLr. */
export interface ConstantOptions {
  /** The full learning rate. */
  baseLr: number;
  /** The fraction. Default: 1/3. */
  factor?: number;
  /** Updates at the fraction. Default: 5. */
  steps?: number;
}

const NAMES: OptionNames<ConstantOptions> = { baseLr: true, factor: true, steps: true };

/**
 * lr = base * factor for the first `steps` updates, base afterwards. As in PyTorch, update number
 * `steps` restores the full learning rate; with 0 or a fractional number of steps, it is never
 * restored.
 */
export class ConstantLr extends PureSchedule {
  readonly name = 'ConstantLR';
  private readonly options: Required<ConstantOptions>;

  /** Throws DS_ARGUMENT. */
  constructor(given: ConstantOptions) {
    super();
    const {
      baseLr,
      factor = 1 / 3,
      steps = 5,
    } = readSchedule('ConstantLR', given, NAMES, ['baseLr']);
    this.options = { baseLr, factor, steps };
  }

  lr(appliedSteps: number): number {
    const { baseLr, factor, steps } = this.options;
    const isOver = Number.isInteger(steps) && steps > 0 && appliedSteps >= steps;
    return isOver ? baseLr : baseLr * factor;
  }
}

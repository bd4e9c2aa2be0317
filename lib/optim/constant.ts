// ConstantLR: a share of the rate for the first updates, then all of it.
// Source: PyTorch torch.optim.lr_scheduler.ConstantLR.
import type { OptionNames } from '../runtime/options.js';
import { PureSchedule, readSchedule } from './schedule.js';

/** Options of ConstantLr. */
export interface ConstantOptions {
  /** The full rate. */
  baseLr: number;
  /** The share. Default 1/3. */
  factor?: number;
  /** Updates that run at the share. Default 5. */
  steps?: number;
}

const NAMES: OptionNames<ConstantOptions> = { baseLr: true, factor: true, steps: true };

/**
 * lr = base * factor for the first `steps` updates, base afterwards. As in PyTorch, update number
 * `steps` brings the full rate back: with 0 steps, or a number that is no count, it never comes.
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

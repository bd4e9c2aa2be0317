// MultiStepLR: multiplies the learning rate by a factor at given updates.
// Source: PyTorch torch.optim.lr_scheduler.MultiStepLR.
import { DsError } from '../errors.js';
import type { OptionNames } from '../runtime/options.js';
import { PureSchedule, readSchedule } from './schedule.js';

/** Options of MultiStepLr. */
export interface MultiStepOptions {
  /** Learning rate of the first update. */
  baseLr: number;
  /** Numbers of updates, in any order. A repeated number counts twice. */
  milestones: readonly number[];
  /** The factor. Default: 0.1. */
  gamma?: number;
}

const NAMES: OptionNames<MultiStepOptions> = { baseLr: true, milestones: true, gamma: true };

/**
 * lr = base * gamma^k after n updates, where k milestones are at most n. Throws DS_CONFIG unless
 * they are integers.
 */
export class MultiStepLr extends PureSchedule {
  readonly name = 'MultiStepLR';
  private readonly options: Required<MultiStepOptions>;

  constructor(given: MultiStepOptions) {
    super();
    const options = readSchedule('MultiStepLR', given, NAMES, ['baseLr']);
    const { baseLr, milestones, gamma = 0.1 } = options;
    const isList = Array.isArray(milestones) && milestones.every((n) => Number.isInteger(n));
    if (!isList) throw notIntegers(milestones);
    this.options = { baseLr, milestones: [...milestones], gamma };
  }

  lr(appliedSteps: number): number {
    const { baseLr, milestones, gamma } = this.options;
    return baseLr * gamma ** milestones.filter((milestone) => milestone <= appliedSteps).length;
  }
}

function notIntegers(got: unknown): DsError {
  return new DsError({
    code: 'DS_CONFIG',
    op: 'scheduler.params.milestones',
    expected: 'a list of integers',
    got: JSON.stringify(got) ?? String(got),
  });
}

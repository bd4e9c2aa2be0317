// LambdaLR: the learning rate is a base rate times a function of the number of updates. Source:
// PyTorch torch.optim.lr_scheduler.LambdaLR.

import type { DsError } from '../errors.js';
import { argumentError } from '../runtime/input-errors.js';
import { namesOf, readOptions } from '../runtime/options.js';
import { requireFinite } from '../runtime/require-number.js';
import { PureSchedule, requireNoOptimizer } from './schedule.js';

/** Options of LambdaLr. */
export interface LambdaOptions {
  /** Base learning rate. */
  baseLr: number;
  /**
   * Returns the factor after `appliedSteps` updates. Must be a pure function with the same result
   * on every rank.
   */
  factor: (appliedSteps: number) => number;
}

/**
 * Computes the learning rate with your function. After n updates: lr = base * factor(n). lr()
 * throws DS_ARGUMENT if `factor` returns a number that is not finite.
 */
export class LambdaLr extends PureSchedule {
  readonly name = 'LambdaLR';

  private readonly options: LambdaOptions;

  /** Throws DS_ARGUMENT unless `baseLr` is finite and `factor` is a function. */
  constructor(given: LambdaOptions) {
    super();
    requireNoOptimizer('LambdaLR', given);
    this.options = readOptions('LambdaLR', given, namesOf.LambdaOptions);
    const { baseLr, factor } = this.options;
    requireFinite('LambdaLR baseLr', baseLr);
    if (typeof factor !== 'function') throw invalidFactorError('a function', factor);
  }

  lr(appliedSteps: number): number {
    const { baseLr, factor } = this.options;
    const value = factor(appliedSteps);
    if (!Number.isFinite(value))
      throw invalidFactorError(`a finite number for ${appliedSteps} updates`, value);
    return baseLr * value;
  }
}

function invalidFactorError(expected: string, got: unknown): DsError {
  return argumentError('LambdaLr factor', expected, String(got));
}

// LRRangeTest: a growing learning rate, to find the largest one that still trains.
// Sources: Smith 2017, arXiv:1506.01186; DeepSpeed runtime/lr_schedules.py, LRRangeTest.
import type { OptionNames } from '../runtime/options.js';
import { PureSchedule, readSchedule, requirePositiveInteger } from './schedule.js';

/** Options of LrRangeTest. */
export interface LrRangeTestOptions {
  /** Learning rate of the first update. Default: 1e-3. */
  minLr?: number;
  /** Updates per interval. Default: 2000. */
  stepSize?: number;
  /** Fraction of the first learning rate that one interval adds. Default: 1. */
  stepRate?: number;
  /** Grow once per interval instead of at every update. Default: false. */
  staircase?: boolean;
}

const NAMES: OptionNames<LrRangeTestOptions> = {
  minLr: true,
  stepSize: true,
  stepRate: true,
  staircase: true,
};

/**
 * lr = min * (1 + rate * u) with u = n / size after n updates, rounded down with `staircase`.
 * Throws DS_CONFIG unless the interval is a positive integer.
 */
export class LrRangeTest extends PureSchedule {
  readonly name = 'LRRangeTest';
  private readonly options: Required<LrRangeTestOptions>;

  constructor(given: LrRangeTestOptions = {}) {
    super();
    const options = readSchedule('LRRangeTest', given, NAMES, []);
    const { minLr = 1e-3, stepSize = 2000, stepRate = 1, staircase = false } = options;
    requirePositiveInteger('scheduler.params.lr_range_test_step_size', stepSize);
    this.options = { minLr, stepSize, stepRate, staircase };
  }

  lr(appliedSteps: number): number {
    const { minLr, stepSize, stepRate, staircase } = this.options;
    const intervals = appliedSteps / stepSize;
    return minLr * (1 + stepRate * (staircase ? Math.floor(intervals) : intervals));
  }
}

// Learning-rate schedules of PyTorch that multiply the rate by a factor, and DeepSpeed's range
// test.
import { DsError } from '../errors.js';
import { PureSchedule, readSchedule, requirePositiveInteger } from './schedule.js';

// ConstantLR: a fraction of the learning rate for the first updates, then the full rate.
// Source: PyTorch torch.optim.lr_scheduler.ConstantLR.

/** Options of ConstantLr. */
export interface ConstantOptions {
  /** The full learning rate. */
  baseLr: number;
  /** The fraction. Default: 1/3. */
  factor?: number;
  /** Number of updates with this fraction. Default: 5. */
  steps?: number;
}

/**
 * Reduces the learning rate of the first updates: lr = base * factor for the first `steps` updates,
 * then base. As in PyTorch, the full rate returns exactly at update number `steps`. If `steps` is 0
 * or fractional, it never returns.
 */
export class ConstantLr extends PureSchedule {
  readonly name = 'ConstantLR';
  private readonly options: Required<ConstantOptions>;

  /** Throws DS_ARGUMENT for an unknown option, or a value that is not finite. */
  constructor(given: ConstantOptions) {
    super();
    this.options = readSchedule('ConstantLR', given, {
      baseLr: undefined,
      factor: 1 / 3,
      steps: 5,
    });
  }

  lr(appliedSteps: number): number {
    const { baseLr, factor, steps } = this.options;
    const isOver = Number.isInteger(steps) && steps > 0 && appliedSteps >= steps;
    return isOver ? baseLr : baseLr * factor;
  }
}

// LinearLR: changes linearly from one fraction of the learning rate to another, then stays
// constant. Source: PyTorch torch.optim.lr_scheduler.LinearLR.

/** Options of LinearLr. */
export interface LinearOptions {
  /** Base learning rate. */
  baseLr: number;
  /** Fraction of the rate at the first update. Default: 1/3. */
  startFactor?: number;
  /** Fraction of the rate from update `steps` on. Default: 1. */
  endFactor?: number;
  /** Number of updates over which the rate changes. Default: 5. */
  steps?: number;
}

/**
 * Changes the learning rate linearly. After n updates:
 *
 *   lr = base * (start + (end - start) * min(n, steps) / steps)
 */
export class LinearLr extends PureSchedule {
  readonly name = 'LinearLR';
  private readonly options: Required<LinearOptions>;

  /** Throws DS_ARGUMENT for an unknown option, DS_CONFIG unless `steps` is an integer from 1. */
  constructor(given: LinearOptions) {
    super();
    this.options = readSchedule('LinearLR', given, {
      baseLr: undefined,
      startFactor: 1 / 3,
      endFactor: 1,
      steps: 5,
    });
    requirePositiveInteger('scheduler.params.total_iters', this.options.steps);
  }

  lr(appliedSteps: number): number {
    const { baseLr, startFactor, endFactor, steps } = this.options;
    const progress = Math.min(appliedSteps, steps) / steps;
    return baseLr * (startFactor + (endFactor - startFactor) * progress);
  }
}

// ExponentialLR: multiplies the learning rate by a factor after every update.
// Source: PyTorch torch.optim.lr_scheduler.ExponentialLR.

/** Options of ExponentialLr. */
export interface ExponentialOptions {
  /** Learning rate of the first update. */
  baseLr: number;
  /** Factor of the rate after every update. */
  gamma: number;
}

/**
 * Multiplies the learning rate by gamma after every update. After n updates: lr = base * gamma^n.
 */
export class ExponentialLr extends PureSchedule {
  readonly name = 'ExponentialLR';

  private readonly options: ExponentialOptions;

  /** Throws DS_ARGUMENT if an option is missing or not finite. */
  constructor(given: ExponentialOptions) {
    super();
    this.options = readSchedule('ExponentialLR', given, { baseLr: undefined, gamma: undefined }, [
      'baseLr',
      'gamma',
    ]);
  }

  lr(appliedSteps: number): number {
    return this.options.baseLr * this.options.gamma ** appliedSteps;
  }
}

// StepLR: multiplies the learning rate by a factor at regular intervals.
// Source: PyTorch torch.optim.lr_scheduler.StepLR.

/** Options of StepLr. */
export interface StepOptions {
  /** Learning rate of the first update. */
  baseLr: number;
  /** Number of updates between two multiplications. */
  stepSize: number;
  /** The factor. Default: 0.1. */
  gamma?: number;
}

/**
 * Multiplies the learning rate by gamma at equal intervals. After n updates: lr = base *
 * gamma^floor(n / stepSize).
 */
export class StepLr extends PureSchedule {
  readonly name = 'StepLR';
  private readonly options: Required<StepOptions>;

  /** Throws DS_ARGUMENT for an unknown option, DS_CONFIG unless `stepSize` is an integer from 1. */
  constructor(given: StepOptions) {
    super();
    this.options = readSchedule('StepLR', given, {
      baseLr: undefined,
      stepSize: undefined,
      gamma: 0.1,
    });
    requirePositiveInteger('scheduler.params.step_size', this.options.stepSize);
  }

  lr(appliedSteps: number): number {
    const { baseLr, stepSize, gamma } = this.options;
    return baseLr * gamma ** Math.floor(appliedSteps / stepSize);
  }
}

// MultiStepLR: multiplies the learning rate by a factor at given updates.
// Source: PyTorch torch.optim.lr_scheduler.MultiStepLR.

/** Options of MultiStepLr. */
export interface MultiStepOptions {
  /** Learning rate of the first update. */
  baseLr: number;
  /** Numbers of updates in any order. If a number occurs twice, the rate is multiplied twice. */
  milestones: readonly number[];
  /** The factor. Default: 0.1. */
  gamma?: number;
}

/**
 * Multiplies the learning rate by gamma at each milestone. After n updates: lr = base * gamma^k,
 * where k is the number of milestones up to n.
 */
export class MultiStepLr extends PureSchedule {
  readonly name = 'MultiStepLR';
  private readonly options: Required<MultiStepOptions>;

  /** Throws DS_ARGUMENT for an unknown option, DS_CONFIG unless the milestones are integers. */
  constructor(given: MultiStepOptions) {
    super();
    const defaults = { baseLr: undefined, milestones: undefined, gamma: 0.1 };
    const { milestones, ...rest } = readSchedule('MultiStepLR', given, defaults);
    const isList = Array.isArray(milestones) && milestones.every((n) => Number.isInteger(n));
    if (!isList) throw notIntegersError(milestones);
    this.options = { ...rest, milestones: [...milestones] };
  }

  lr(appliedSteps: number): number {
    const { baseLr, milestones, gamma } = this.options;
    return baseLr * gamma ** milestones.filter((milestone) => milestone <= appliedSteps).length;
  }
}

function notIntegersError(got: unknown): DsError {
  return new DsError({
    code: 'DS_CONFIG',
    op: 'scheduler.params.milestones',
    expected: 'a list of integers',
    got: JSON.stringify(got) ?? String(got),
  });
}

// PolynomialLR: follows a power of the fraction of updates that remain, down to zero.
// Source: PyTorch torch.optim.lr_scheduler.PolynomialLR.

/** Options of PolynomialLr. */
export interface PolynomialOptions {
  /** Learning rate of the first update. */
  baseLr: number;
  /** Number of updates until the learning rate is zero. Default: 5. */
  totalSteps?: number;
  /** Exponent of the decay; 1 is linear. Default: 1. */
  power?: number;
}

/**
 * Decays the learning rate to 0. After n updates:
 *
 *   lr = base * (1 - min(n, total) / total)^power
 */
export class PolynomialLr extends PureSchedule {
  readonly name = 'PolynomialLR';
  private readonly options: Required<PolynomialOptions>;

  /**
   * Throws DS_ARGUMENT for an unknown option, DS_CONFIG unless `totalSteps` is an integer from 1.
   */
  constructor(given: PolynomialOptions) {
    super();
    this.options = readSchedule('PolynomialLR', given, {
      baseLr: undefined,
      totalSteps: 5,
      power: 1,
    });
    requirePositiveInteger('scheduler.params.total_iters', this.options.totalSteps);
  }

  lr(appliedSteps: number): number {
    const { baseLr, totalSteps, power } = this.options;
    return baseLr * ((totalSteps - Math.min(appliedSteps, totalSteps)) / totalSteps) ** power;
  }
}

// LRRangeTest: raises the learning rate during a run. The loss shows the largest rate that still
// trains. Sources: Smith 2017, arXiv:1506.01186; DeepSpeed runtime/lr_schedules.py, LRRangeTest.

/** Options of LrRangeTest. */
export interface LrRangeTestOptions {
  /** Learning rate of the first update. Default: 1e-3. */
  minLr?: number;
  /** Number of updates per interval. Default: 2000. */
  stepSize?: number;
  /** Each interval adds this fraction of the first learning rate. Default: 1. */
  stepRate?: number;
  /** Raise the rate once per interval instead of at every update. Default: false. */
  staircase?: boolean;
}

/**
 * Raises the learning rate to find the largest one that trains. After n updates: lr = min * (1 +
 * rate * u), with u = n / stepSize. With `staircase`, u is rounded down.
 */
export class LrRangeTest extends PureSchedule {
  readonly name = 'LRRangeTest';
  private readonly options: Required<LrRangeTestOptions>;

  /** Throws DS_ARGUMENT for an unknown option, DS_CONFIG unless `stepSize` is an integer from 1. */
  constructor(given: LrRangeTestOptions = {}) {
    super();
    const defaults = { minLr: 1e-3, stepSize: 2000, stepRate: 1, staircase: false };
    this.options = readSchedule('LRRangeTest', given, defaults, []);
    requirePositiveInteger('scheduler.params.lr_range_test_step_size', this.options.stepSize);
  }

  lr(appliedSteps: number): number {
    const { minLr, stepSize, stepRate, staircase } = this.options;
    const intervals = appliedSteps / stepSize;
    return minLr * (1 + stepRate * (staircase ? Math.floor(intervals) : intervals));
  }
}

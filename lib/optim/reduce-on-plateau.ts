// ReduceLROnPlateau: lowers the learning rate when a metric stops improving.
// Source: PyTorch torch.optim.lr_scheduler.ReduceLROnPlateau.
import type { JsonObject } from '../../types/json.js';
import { DsError } from '../errors.js';
import { valueError } from '../runtime/input-errors.js';
import { Tensor } from '../tensor/index.js';
import {
  type LrSchedule,
  readSchedule,
  type ScheduledGroup,
  type ScheduleWord,
} from './schedule.js';

/** Options of ReduceLrOnPlateau. */
export interface PlateauOptions {
  /** The learning rate before the first reduction. */
  baseLr: number;
  /** Whether a smaller or a larger metric is better. Default: "min". */
  mode?: ScheduleWord<'mode'>;
  /** Factor of each reduction, below 1. Default: 0.1. */
  factor?: number;
  /** Number of observations without improvement before a reduction. Default: 10. */
  patience?: number;
  /** Smallest change of the metric that counts as an improvement. Default: 1e-4. */
  threshold?: number;
  /**
   * "rel": `threshold` is a fraction of the best metric. "abs": it is a difference. Default: "rel".
   */
  thresholdMode?: ScheduleWord<'thresholdMode'>;
  /** Number of observations after a reduction that `patience` does not count. Default: 0. */
  cooldown?: number;
  /** Minimum learning rate. Default: 0. */
  minLr?: number;
  /** Smallest reduction of the rate. Smaller reductions are skipped. Default: 1e-8. */
  eps?: number;
}

/** A metric for ReduceLrOnPlateau. A tensor must have one element. */
export type Metric = number | Tensor;

/**
 * Reduces the learning rate when a metric stops improving. Call observe() with the metric after
 * each evaluation; the number of updates has no effect. After more than `patience` observations in
 * a row without improvement: lr = max(lr * factor, min).
 */
export class ReduceLrOnPlateau implements LrSchedule {
  readonly name = 'ReduceLROnPlateau';
  private readonly options: Required<PlateauOptions>;
  private rate: number;
  /** The best metric; infinite before the first observation. */
  private best: number;
  private badObservations = 0;
  private cooldownLeft = 0;

  /** Throws DS_ARGUMENT for an unknown option, DS_CONFIG unless the factor is below 1. */
  constructor(given: PlateauOptions) {
    this.options = readSchedule('ReduceLROnPlateau', given, {
      baseLr: undefined,
      mode: 'min',
      factor: 0.1,
      patience: 10,
      threshold: 1e-4,
      thresholdMode: 'rel',
      cooldown: 0,
      minLr: 0,
      eps: 1e-8,
    });
    const { baseLr, factor } = this.options;
    if (!(factor < 1)) {
      throw new DsError({
        code: 'DS_CONFIG',
        op: 'scheduler.params.factor',
        expected: 'a value < 1',
        got: String(factor),
      });
    }
    this.rate = baseLr;
    this.best = this.worst;
  }

  lr(): number {
    return this.rate;
  }

  apply(group: ScheduledGroup): void {
    group.lr = this.rate;
  }

  /**
   * Records a metric, and reduces the learning rate if necessary. NaN is never an improvement.
   * Infinite metrics are compared as in PyTorch. Throws DS_ARGUMENT unless the metric is a number
   * or a tensor of one element.
   */
  observe(given: Metric): void {
    const metric = numberOf(given);
    if (this.isBetter(metric)) {
      this.best = metric;
      this.badObservations = 0;
    } else {
      this.badObservations++;
    }
    if (this.cooldownLeft > 0) {
      this.cooldownLeft--;
      this.badObservations = 0;
    }
    if (this.badObservations > this.options.patience) {
      this.reduce();
      this.cooldownLeft = this.options.cooldown;
      this.badObservations = 0;
    }
  }

  stateDict(): JsonObject {
    return {
      lr: this.rate,
      best: this.best === this.worst ? null : (nameNonFinite(this.best) ?? this.best),
      num_bad_epochs: this.badObservations,
      cooldown_counter: this.cooldownLeft,
    };
  }

  /** Throws DS_CHECKPOINT if the state is of another schedule. */
  loadStateDict(state: JsonObject): void {
    const { lr, best, num_bad_epochs, cooldown_counter } = state;
    requireNumber('lr', lr, (x) => x >= 0);
    requireNumber('num_bad_epochs', num_bad_epochs, isCount);
    requireNumber('cooldown_counter', cooldown_counter, isCount);
    const infinite = Object.values(INFINITE).find((value) => nameNonFinite(value) === best);
    if (best !== null && infinite === undefined) requireNumber('best', best);
    this.rate = lr;
    this.best = infinite ?? (best === null ? this.worst : (best as number));
    this.badObservations = num_bad_epochs;
    this.cooldownLeft = cooldown_counter;
  }

  private isBetter(metric: number): boolean {
    const { mode, threshold, thresholdMode } = this.options;
    const sign = mode === 'min' ? -1 : 1;
    const bar =
      thresholdMode === 'rel' ? this.best * (1 + sign * threshold) : this.best + sign * threshold;
    return mode === 'min' ? metric < bar : metric > bar;
  }

  /** The metric that any other metric improves on. */
  private get worst(): number {
    return this.options.mode === 'min' ? INFINITE.positive : INFINITE.negative;
  }

  private reduce(): void {
    const { factor, minLr, eps } = this.options;
    const lower = Math.max(this.rate * factor, minLr);
    if (this.rate - lower > eps) this.rate = lower;
  }
}

const INFINITE = { positive: Number.POSITIVE_INFINITY, negative: Number.NEGATIVE_INFINITY };

/**
 * Returns an infinite number as text, because JSON has no infinity. Returns null for a finite
 * number.
 */
const nameNonFinite = (value: number): string | null =>
  Number.isFinite(value) ? null : String(value);

/** Returns the metric as a number. Waits for the device if the metric is a tensor. */
function numberOf(metric: Metric): number {
  const value: unknown = metric instanceof Tensor ? metric.item() : metric;
  if (typeof value === 'number') return value;
  throw valueError('ReduceLROnPlateau observe', 'a number, or a tensor of one element', metric);
}

const isCount = (x: number): boolean => Number.isSafeInteger(x) && x >= 0;

function requireNumber(
  key: string,
  value: unknown,
  isGood: (value: number) => boolean = () => true,
): asserts value is number {
  if (typeof value === 'number' && Number.isFinite(value) && isGood(value)) return;
  throw new DsError({
    code: 'DS_CHECKPOINT',
    op: `schedule.${key}`,
    expected: 'the state of ReduceLROnPlateau',
    got: JSON.stringify(value) ?? 'nothing',
    hint: 'It was saved with another schedule. Load with loadLrSchedulerStates: false, or use that schedule.',
  });
}

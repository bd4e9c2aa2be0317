// Batch sizes: the global batch, the micro-batch per rank, and the micro-batches of a step.
import { DsError } from '../../errors.js';
import { formatValue } from '../../runtime/format-value.js';
import { requireEnded, requireType } from '../../runtime/require-type.js';
import { missingStepError, misuseError } from '../engine-errors.js';

/**
 * Gradient accumulation: the number of backwards per step, and the divisor of each loss.
 * `backwards`: backwards since the last step.
 */
interface Accumulation {
  /** Divisor of the loss of each backward. */
  readonly divisor: number;
  /** Returns whether the next backward, after `backwards` others, completes the gradients. */
  isCompletedBy(done: number): boolean;
  /** Returns whether another backward is allowed after `backwards` others. */
  isOpenAfter(done: number): boolean;
  /** Returns whether step() updates after `backwards` backwards. */
  isUpdateAfter(done: number): boolean;
}

/** gradient_accumulation_steps: every `steps`-th step() updates. */
export function managedAccumulation(steps: number): Accumulation {
  return {
    divisor: steps,
    isCompletedBy: (done) => done >= steps - 1,
    isOpenAfter: (done) => done < steps,
    isUpdateAfter: (done) => done >= steps,
  };
}

/**
 * Accumulation of a pipeline rank with `stages` stages, each with one backward per micro-batch. The
 * last backward does not complete the gradients: reducing them there would wait for ranks that wait
 * for this rank's results. So the caller of the batch completes them.
 */
export const stagedAccumulation =
  (stages: number) =>
  (steps: number): Accumulation => ({
    divisor: steps,
    isCompletedBy: () => false,
    isOpenAfter: (done) => done < steps * stages,
    isUpdateAfter: (done) => done >= steps * stages,
  });

/** managed_gradient_accumulation false: the caller divides the losses, and every step() updates. */
export const unmanagedAccumulation = (): Accumulation => ({
  divisor: 1,
  isCompletedBy: () => false,
  isOpenAfter: () => true,
  isUpdateAfter: () => true,
});

interface BatchOptions {
  /** Samples per micro-batch on one rank. */
  microPerDevice: number;
  /** Micro-batches per step. */
  accumulationSteps: number;
  /** Number of data ranks. */
  dataRanks: number;
  /** Returns the accumulation for a number of micro-batches per step. */
  accumulation: (steps: number) => Accumulation;
  /** Backwards per micro-batch: the pipeline stages of this rank. Default: 1. */
  passes?: number;
}

/** Batch sizes, which change only between steps; the engine checks this. */
export class BatchSizes {
  private micro: number;
  private steps: number;
  private createAccumulation: Accumulation;

  constructor(private readonly options: BatchOptions) {
    this.micro = options.microPerDevice;
    this.steps = options.accumulationSteps;
    this.createAccumulation = options.accumulation(this.steps);
  }

  get microPerDevice(): number {
    return this.micro;
  }

  get accumulationSteps(): number {
    return this.steps;
  }

  /** Samples per micro-batch over all ranks. */
  get micros(): number {
    return this.micro * this.options.dataRanks;
  }

  /** Samples per step over all ranks. */
  get train(): number {
    return this.micros * this.steps;
  }

  /** Returns the samples that the `backwards`-th backward of a step completes. */
  samplesOf(done: number): number {
    return done % (this.options.passes ?? 1) === 0 ? this.micros : 0;
  }

  get accumulation(): Accumulation {
    return this.createAccumulation;
  }

  /**
   * Sets the global batch; the micro-batch stays. Throws DS_ARGUMENT unless `train` is a multiple
   * of the micro-batch over all ranks.
   */
  setTrain(train: number): void {
    const steps = typeof train === 'number' ? train / this.micros : 0;
    if (!Number.isInteger(steps) || steps < 1) {
      throw invalidError(
        'engine.setTrainBatchSize',
        `a positive multiple of ${this.micros}`,
        train,
      );
    }
    this.steps = steps;
    this.createAccumulation = this.options.accumulation(steps);
  }

  /**
   * Sets the micro-batch; the accumulation steps stay. Throws DS_ARGUMENT unless `micro` is a
   * positive integer.
   */
  setMicro(micro: number): void {
    if (!Number.isInteger(micro) || micro < 1) {
      throw invalidError('engine.setTrainMicroBatchSize', 'a positive integer', micro);
    }
    this.micro = micro;
  }
}

/** Counts the micro-batches of the running step. */
export class MicroBatches {
  /** Samples of all data ranks in the backwards since the last step. */
  samples = 0;
  /** Whether step() was called after fewer backwards than an update needs. */
  hasStepped = false;
  /** Backwards since the last step, without those inside noSync(). */
  private backwards = 0;
  /** Whether a backward has ended, and its step() has not been called. */
  private awaitsStep = false;
  private isInNoSync = false;

  constructor(private readonly sizes: BatchSizes) {}

  /** Backwards since the last step that count. */
  get count(): number {
    return this.backwards;
  }

  /** Whether gradients of the present backward stay on this rank. */
  get isLocal(): boolean {
    return this.isInNoSync;
  }

  /** Whether the present or next backward completes the gradients of a step. */
  get completesStep(): boolean {
    return !this.isInNoSync && this.sizes.accumulation.isCompletedBy(this.backwards);
  }

  /**
   * Whether the backward before the pending step() completes the gradients of a step; if no step()
   * is pending, whether the next backward does. Source: step() of DeepSpeed counts
   * micro-batches.
   */
  get atBoundary(): boolean {
    const done = this.awaitsStep ? this.backwards - 1 : this.backwards;
    return !this.isInNoSync && this.sizes.accumulation.isCompletedBy(done);
  }

  /** Throws DS_AUTOGRAD if the step accepts no further backward. */
  requireAnother(): void {
    const { accumulation } = this.sizes;
    if (!accumulation.isOpenAfter(this.backwards)) throw missingStepError(accumulation.divisor);
  }

  begin(): void {
    this.awaitsStep = false;
  }

  /** Ends a backward. */
  end(): void {
    if (!this.isInNoSync) {
      this.backwards++;
      this.awaitsStep = true;
    }
    this.samples += this.isInNoSync ? this.sizes.micros : this.sizes.samplesOf(this.backwards);
  }

  /**
   * Called in step(); returns whether it updates. Throws DS_AUTOGRAD inside noSync(), and without a
   * backward that counts; `isEmpty`: there is no gradient at all.
   */
  step(isEmpty: boolean): boolean {
    if (this.isInNoSync)
      throw misuseError('engine.step', 'step() outside noSync()', 'step() inside it');
    if (this.backwards === 0) {
      const got = isEmpty
        ? 'no gradient since the last step'
        : 'only gradients of noSync(), which do not count';
      throw misuseError('engine.step', 'backward() before step()', got);
    }
    this.awaitsStep = false;
    const updates = this.sizes.accumulation.isUpdateAfter(this.backwards);
    if (!updates) this.hasStepped = true;
    return updates;
  }

  /** Runs `body`; its backwards do not count. */
  noSync<Result>(body: () => Result): Result {
    if (this.isInNoSync)
      throw misuseError('engine.noSync', 'one noSync() at a time', 'a nested noSync()');
    requireType('engine.noSync', body, 'function');
    this.isInNoSync = true;
    try {
      return requireEnded('engine.noSync', body(), {
        consequence: 'its backwards would be counted and reduced',
        hint: 'Write await outside, and noSync() around each synchronous part.',
      });
    } finally {
      this.isInNoSync = false;
    }
  }

  /** Begins the next step. */
  reset(): void {
    this.samples = 0;
    this.backwards = 0;
    this.awaitsStep = false;
    this.hasStepped = false;
  }
}

function invalidError(op: string, expected: string, got: unknown): DsError {
  return new DsError({ code: 'DS_ARGUMENT', op, expected, got: formatValue(got) });
}

// Batch sizes, and the count of micro-batches in a step.
import { DsError } from '../../errors.js';
import { formatValue } from '../../runtime/format-value.js';
import { requireEnded, requireType } from '../../runtime/require-type.js';
import { missingStepError, misuseError } from '../engine-errors.js';

/**
 * Gradient accumulation: how many backwards form a step, and by how much each loss is divided. The
 * argument `done` is the number of backwards since the last step.
 */
interface Accumulation {
  /** The loss of each backward is divided by this. */
  readonly divisor: number;
  /** Returns whether the next backward completes the gradients of the step. */
  isCompletedBy(done: number): boolean;
  /** Returns whether another backward is allowed. */
  isOpenAfter(done: number): boolean;
  /** Returns whether step() updates now. */
  isUpdateAfter(done: number): boolean;
}

/** Accumulation by gradient_accumulation_steps: every `steps`-th step() updates. */
export function managedAccumulation(steps: number): Accumulation {
  return {
    divisor: steps,
    isCompletedBy: (done) => done >= steps - 1,
    isOpenAfter: (done) => done < steps,
    isUpdateAfter: (done) => done >= steps,
  };
}

/**
 * Accumulation of a pipeline rank with `stages` stages. Each stage has one backward per
 * micro-batch. The last backward does not complete the gradients: a reduction there would wait for
 * ranks that still need results of this rank. The caller completes them after the batch.
 */
export const stagedAccumulation =
  (stages: number) =>
  (steps: number): Accumulation => ({
    divisor: steps,
    isCompletedBy: () => false,
    isOpenAfter: (done) => done < steps * stages,
    isUpdateAfter: (done) => done >= steps * stages,
  });

/**
 * Accumulation for managed_gradient_accumulation false: the caller divides the losses, and every
 * step() updates.
 */
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
  /** Backwards per micro-batch: the number of pipeline stages on this rank. Default: 1. */
  passes?: number;
}

/** The batch sizes of an engine. They may change only between steps; the engine checks this. */
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

  /**
   * Returns the number of samples that backward number `done` of a step completes, over all ranks.
   */
  samplesOf(done: number): number {
    return done % (this.options.passes ?? 1) === 0 ? this.micros : 0;
  }

  get accumulation(): Accumulation {
    return this.createAccumulation;
  }

  /**
   * Sets the samples per step. The micro-batch size stays. Throws DS_ARGUMENT unless `train` is a
   * multiple of the micro-batch size over all ranks.
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
   * Sets the micro-batch size. The number of accumulation steps stays. Throws DS_ARGUMENT unless
   * `micro` is a positive integer.
   */
  setMicro(micro: number): void {
    if (!Number.isInteger(micro) || micro < 1) {
      throw invalidError('engine.setTrainMicroBatchSize', 'a positive integer', micro);
    }
    this.micro = micro;
  }
}

/** Counts the backwards of the present step. */
export class MicroBatches {
  /** Samples of all data ranks in the backwards since the last step. */
  samples = 0;
  /** Whether step() was called after too few backwards for an update. */
  hasStepped = false;
  /** Number of backwards since the last step, without those inside noSync(). */
  private backwards = 0;
  /** Whether a backward has ended and step() was not called since. */
  private awaitsStep = false;
  private isInNoSync = false;

  constructor(private readonly sizes: BatchSizes) {}

  /** Number of backwards since the last step, without those inside noSync(). */
  get count(): number {
    return this.backwards;
  }

  /** Whether the gradients of the present backward stay on this rank. */
  get isLocal(): boolean {
    return this.isInNoSync;
  }

  /** Whether the present backward, or else the next one, completes the gradients of a step. */
  get completesStep(): boolean {
    return !this.isInNoSync && this.sizes.accumulation.isCompletedBy(this.backwards);
  }

  /**
   * Whether the backward of the pending step() completes the gradients of a step. If no step() is
   * pending: whether the next backward does. Source: DeepSpeed counts micro-batches in step().
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
   * Called in step(). Returns whether it updates. Throws DS_AUTOGRAD inside noSync(), and if no
   * backward counts. `isEmpty`: there is no gradient at all, not even of noSync().
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

  /** Runs `body`. Backwards in it do not count. */
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

// Batch sizes: the global batch, the micro-batch per rank, and the accumulation steps.
import { DsError } from '../../errors.js';
import { formatValue } from '../../runtime/format-value.js';

// Gradient accumulation: the number of backwards per step, and the divisor of each loss.

/** `done`: backwards since the last step. */
export interface Accumulation {
  /** Divisor of the loss of each backward. */
  readonly divisor: number;
  /** Whether the next backward, after `done` others, completes the gradients. */
  completes(done: number): boolean;
  /** Whether another backward is allowed after `done` others. */
  accepts(done: number): boolean;
  /** Whether step() updates after `done` backwards. */
  applies(done: number): boolean;
}

/** gradient_accumulation_steps: every `steps`-th step() updates. */
export function managed(steps: number): Accumulation {
  return {
    divisor: steps,
    completes: (done) => done >= steps - 1,
    accepts: (done) => done < steps,
    applies: (done) => done >= steps,
  };
}

/**
 * Accumulation of a pipeline rank with `stages` stages, each with one backward per micro-batch. The
 * last backward does not complete the gradients: reducing them there would wait for ranks that wait
 * for this rank's results. So the caller of the batch completes them.
 */
export const inStages =
  (stages: number) =>
  (steps: number): Accumulation => ({
    divisor: steps,
    completes: () => false,
    accepts: (done) => done < steps * stages,
    applies: (done) => done >= steps * stages,
  });

/** managed_gradient_accumulation false: the caller divides the losses, and every step() updates. */
export const unmanaged = (): Accumulation => ({
  divisor: 1,
  completes: () => false,
  accepts: () => true,
  applies: () => true,
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

/** The sizes change only between steps; the engine checks this. */
export class BatchSizes {
  private micro: number;
  private steps: number;
  private makesStep: Accumulation;

  constructor(private readonly options: BatchOptions) {
    this.micro = options.microPerDevice;
    this.steps = options.accumulationSteps;
    this.makesStep = options.accumulation(this.steps);
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

  /** Returns the samples that the `done`-th backward of a step completes. */
  samplesOf(done: number): number {
    return done % (this.options.passes ?? 1) === 0 ? this.micros : 0;
  }

  get accumulation(): Accumulation {
    return this.makesStep;
  }

  /**
   * Sets the global batch; the micro-batch stays. Throws DS_ARGUMENT unless `train` is a multiple
   * of the micro-batch over all ranks.
   */
  setTrain(train: number): void {
    const steps = typeof train === 'number' ? train / this.micros : 0;
    if (!Number.isInteger(steps) || steps < 1) {
      throw wrong('engine.setTrainBatchSize', `a positive multiple of ${this.micros}`, train);
    }
    this.steps = steps;
    this.makesStep = this.options.accumulation(steps);
  }

  /**
   * Sets the micro-batch; the accumulation steps stay. Throws DS_ARGUMENT unless `micro` is a
   * positive integer.
   */
  setMicro(micro: number): void {
    if (!Number.isInteger(micro) || micro < 1) {
      throw wrong('engine.setTrainMicroBatchSize', 'a positive integer', micro);
    }
    this.micro = micro;
  }
}

function wrong(op: string, expected: string, got: unknown): DsError {
  return new DsError({ code: 'DS_ARGUMENT', op, expected, got: formatValue(got) });
}

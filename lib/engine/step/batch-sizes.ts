// The batch triad: samples of an update, of a micro-batch on one rank, and micro-batches of an
// update.
import { DsError } from '../../errors.js';
import { formatValue } from '../../runtime/format-value.js';
import type { Accumulation } from './accumulation.js';

export interface BatchOptions {
  /** Samples of a micro-batch on one rank. */
  microPerDevice: number;
  /** Micro-batches of an update. */
  accumulationSteps: number;
  /** Ranks that share a batch out. */
  dataRanks: number;
  /** Who counts micro-batches, and how, given those of an update. */
  accumulation: (steps: number) => Accumulation;
  /** Backwards of a micro-batch: stages of a pipeline that this rank has. Default 1. */
  passes?: number;
}

/** Changes between steps only: the engine sees to it. */
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

  /** Samples of a micro-batch on all ranks. */
  get micros(): number {
    return this.micro * this.options.dataRanks;
  }

  /** Samples of an update on all ranks. */
  get train(): number {
    return this.micros * this.steps;
  }

  /** Samples that are done with the `done`-th backward of a step, and were not before. */
  samplesOf(done: number): number {
    return done % (this.options.passes ?? 1) === 0 ? this.micros : 0;
  }

  /** How many backwards make a step. */
  get accumulation(): Accumulation {
    return this.makesStep;
  }

  /**
   * Another global batch: the micro-batch stays. Throws DS_ARGUMENT unless it is a multiple of
   * those of all ranks.
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
   * Another micro-batch: the accumulation steps stay. Throws DS_ARGUMENT unless it is a positive
   * integer.
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

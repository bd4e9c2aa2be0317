// What the engine tells of a finished step: values that it has anyway, so that no step waits for
// its observers.
import type { TimedStep } from './phase-timer.js';

/** A step whose decision was taken; counters and rates are those after it. */
export interface FinishedStep {
  /** Global steps, this one included. */
  step: number;
  /** Global samples, this step's included. */
  samples: number;
  /** Updates skipped so far. */
  skipped: number;
  /** Whether this update changed the weights. */
  applied: boolean;
  /**
   * Mean over the micro-batches of all ranks; null when loss.backward() was used without scale().
   */
  loss: number | null;
  /** Global L2 norm of the gradients before clipping. */
  norm: number;
  /** The rate of each parameter group at the next update, as getLr() gives it. */
  lr: readonly number[];
  /** Of each parameter group; empty where the optimizer has none. */
  betas: readonly (readonly number[])[];
  /** The loss scale of the next backward. */
  lossScale: number;
}

/** Called between steps, on the training thread. */
export interface StepObserver {
  /** In order, once per global step: in the next backward(), or when the engine synchronizes. */
  stepFinished?(report: FinishedStep): void;
  /** In order, once per timed step, a step later than stepFinished(). */
  stepTimed?(timed: TimedStep): void;
  /** Resolves when what was observed so far is safe. */
  flush?(): Promise<void>;
  /** The engine is destroyed. */
  close?(): void;
}

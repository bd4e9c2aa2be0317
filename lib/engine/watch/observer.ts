// StepObserver: receives values of finished steps that the engine already has, so no step waits.
import type { TimedStep } from './phase-timer.js';

/** A step after its decision. Counters and learning rates are the values after it. */
export interface FinishedStep {
  /** Global steps, including this one. */
  step: number;
  /** Global samples, including this step. */
  samples: number;
  /** Skipped updates so far. */
  skipped: number;
  /** Whether this update changed the weights. */
  applied: boolean;
  /** Mean over the micro-batches of all ranks; null for loss.backward() without scale(). */
  loss: number | null;
  /** Global L2 norm of the gradients before clipping. */
  norm: number;
  /** Learning rate of each group at the next update, as in getLr(). */
  lr: readonly number[];
  /** By parameter group; empty without betas. */
  betas: readonly (readonly number[])[];
  /** The loss scale of the next backward. */
  lossScale: number;
}

/** Called between steps on the training thread. */
export interface StepObserver {
  /** Once per global step, in order: in the next backward(), or when the engine synchronizes. */
  stepFinished?(report: FinishedStep): void;
  /** Once per timed step, in order, one step later than stepFinished(). */
  stepTimed?(timed: TimedStep): void;
  /** Resolves when all earlier records are on disk. */
  flush?(): Promise<void>;
  /** The engine is destroyed. */
  close?(): void;
}

// How far a run has come: the counters that a checkpoint restores.

/** How far an engine has trained; checkpoints carry it. */
export interface Progress {
  /** Optimizer steps, skipped ones included. */
  globalSteps: number;
  /** Samples of all ranks in them. */
  globalSamples: number;
  /** Steps whose gradients were not finite and changed nothing. */
  skippedSteps: number;
  /** Updates that changed the weights: Adam's t. */
  appliedSteps: number;
  /**
   * The schedules' time is appliedSteps - scheduleStart: 0 unless only one of both was restored.
   */
  scheduleStart: number;
}

/** Of a run that has not begun. */
export function noProgress(): Progress {
  return { globalSteps: 0, globalSamples: 0, skippedSteps: 0, appliedSteps: 0, scheduleStart: 0 };
}

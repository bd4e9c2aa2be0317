// Progress: the counters of a run that a checkpoint restores.

/** The training progress of an engine. */
export interface Progress {
  /** Optimizer steps, including skipped ones. */
  globalSteps: number;
  /** Samples of all ranks in these steps. */
  globalSamples: number;
  /** Steps without an update because of non-finite gradients. */
  skippedSteps: number;
  /** Updates that changed the weights: Adam's t. */
  appliedSteps: number;
  /**
   * Schedules run at appliedSteps - scheduleStart. It is 0 unless a load restored only the
   * optimizer or only the schedules.
   */
  scheduleStart: number;
}

export function noProgress(): Progress {
  return { globalSteps: 0, globalSamples: 0, skippedSteps: 0, appliedSteps: 0, scheduleStart: 0 };
}

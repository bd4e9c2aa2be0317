// Makes weights equal on all ranks before a read, for optimizers with local updates (0/1 Adam).
import type { EngineParts } from '../engine-parts.js';

/**
 * Makes the weights of all ranks equal if an optimizer lets them differ; waits for the last step
 * decision then. All ranks call it.
 */
export function resync({
  state,
  stage,
  stepDecisions,
  progress,
}: Pick<EngineParts, 'state' | 'stage' | 'stepDecisions' | 'progress'>): void {
  if (!state.isAdrift) return;
  stepDecisions.take();
  state.resync(progress.appliedSteps, stage);
  stage.dispatch();
}

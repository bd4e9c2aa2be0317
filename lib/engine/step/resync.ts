// Where ranks have updated by themselves: the same weights on all of them, before anybody looks.
import type { EngineParts } from '../engine-parts.js';

/**
 * All ranks call it; it does nothing but where an optimizer lets them go apart (0/1 Adam). Waits
 * for the last decision then.
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

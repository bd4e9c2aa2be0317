// Where ranks have updated by themselves: the same weights on all of them, before anybody looks.
import type { EngineParts } from '../engine-parts.js';

/**
 * All ranks call it; it does nothing but where an optimizer lets them go apart (0/1 Adam). Waits
 * for the last verdict then.
 */
export function settle({
  state,
  stage,
  verdicts,
  progress,
}: Pick<EngineParts, 'state' | 'stage' | 'verdicts' | 'progress'>): void {
  if (!state.isAdrift) return;
  verdicts.take();
  state.settle(progress.appliedSteps, stage);
  stage.dispatch();
}

// Decides if speculation pays, by the share of recent steps with a wrong assumption.

/** Number of steps in the window. */
export const windowLength = 10;

/**
 * Above this share of missed steps, computing weights twice costs more than the overlap saves.
 * GPT-2 1558M with all state in host memory (H200): 310 ms for a step with a correct assumption,
 * 535 ms for a miss, 377 ms without speculation.
 */
const pauseAbove = 0.3;
/**
 * At this share speculation resumes. It is lower, because a pause begins with a pass that only
 * commits.
 */
const resumeAt = 0.2;

/** A step misses if its gradients were clipped or not finite. */
export class ClipWindow {
  private readonly missed: boolean[] = [];
  private paused = false;

  /** Whether to speculate on the next step. */
  get speculate(): boolean {
    return !this.paused;
  }

  /**
   * Records a step's decision, with or without speculation. A new run uses the steps so far,
   * because most runs clip at their start.
   */
  record(missed: boolean): void {
    this.missed.push(missed);
    if (this.missed.length > windowLength) this.missed.shift();
    const missRate = this.missed.filter(Boolean).length / this.missed.length;
    this.paused = missRate > (this.paused ? resumeAt : pauseAbove);
  }
}

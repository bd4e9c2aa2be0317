// Whether speculation pays: the share of recent steps whose update turned out other than tried.

/** Steps that count. */
export const windowLength = 10;

/**
 * Above this share of missed steps, emitting weights twice costs more than the overlap saves. Of
 * GPT-2 1558M with all state in host memory (H200) a step that holds takes 310 ms, one that misses
 * 535, one that nothing is tried out of 377.
 */
const pauseAbove = 0.3;
/** At this share speculation goes on: lower, since a pause begins with a pass that only commits. */
const resumeAt = 0.2;

/** A step is missed when its gradients were clipped or not finite. */
export class ClipWindow {
  private readonly missed: boolean[] = [];
  private paused = false;

  /** Whether the next step's update should be tried out before its decision. */
  get speculate(): boolean {
    return !this.paused;
  }

  /**
   * Takes a step's decision into account, whether it was tried out or not. Of a new run the steps
   * so far count: most runs clip at their start.
   */
  record(missed: boolean): void {
    this.missed.push(missed);
    if (this.missed.length > windowLength) this.missed.shift();
    const share = this.missed.filter(Boolean).length / this.missed.length;
    this.paused = share > (this.paused ? resumeAt : pauseAbove);
  }
}

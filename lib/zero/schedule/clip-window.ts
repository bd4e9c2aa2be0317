// Whether speculation pays: the share of recent steps whose update turned out other than tried.

/** Steps that count. */
export const windowLength = 10;
/** Steps of a new run after which it is first judged: most runs clip at their start. */
export const fewestSteps = 4;

/** Above this share of missed steps, emitting weights twice costs more than the overlap saves. */
export const pauseAbove = 0.6;
/** At this share speculation goes on: lower, since a pause begins with a pass that only commits. */
export const resumeAt = 0.4;

/** A step is missed when its gradients were clipped or not finite. */
export class ClipWindow {
  private readonly missed: boolean[] = [];
  private paused = false;

  /** Whether the next step's update should be tried out before its verdict. */
  get speculate(): boolean {
    return !this.paused;
  }

  /** Takes a step's verdict into account, whether it was tried out or not. */
  record(missed: boolean): void {
    this.missed.push(missed);
    if (this.missed.length > windowLength) this.missed.shift();
    if (this.missed.length < fewestSteps) return;
    const share = this.missed.filter(Boolean).length / this.missed.length;
    this.paused = share > (this.paused ? resumeAt : pauseAbove);
  }
}

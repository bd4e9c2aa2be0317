// Whether speculation pays: the share of recent steps whose update turned out other than tried.

/** Steps that count, and that a pause lasts. */
export const windowLength = 20;

/** Above this share of missed steps, emitting weights twice costs more than the overlap saves. */
export const missLimit = 0.6;

/**
 * A step is missed when its gradients were clipped or not finite. Once more than missLimit of the last windowLength
 * steps were missed, speculation pauses for windowLength steps, and is then judged again by these.
 */
export class ClipWindow {
  private readonly missed: boolean[] = [];
  private pause = 0;

  /** Whether the next step's update should be tried out before its verdict. */
  get speculate(): boolean {
    return this.pause === 0;
  }

  /** Takes a step's verdict into account, whether it was tried out or not. */
  record(missed: boolean): void {
    this.missed.push(missed);
    if (this.missed.length > windowLength) this.missed.shift();
    if (this.pause > 0) this.pause--;
    if (this.pause > 0 || this.missed.length < windowLength) return;
    const misses = this.missed.filter(Boolean).length;
    if (misses > missLimit * windowLength) this.pause = windowLength;
  }
}

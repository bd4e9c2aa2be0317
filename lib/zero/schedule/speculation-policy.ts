// The policy of speculative updates: their order during backward, their number, and whether they
// pay.

/** One postponed unit per this many: three with 24 or more units on one processor. */
const UNITS_PER_LEFT = 8;

/**
 * Backward completes units last to first; the next forward reads them first to last. The first
 * `early` arrivals are updated as they arrive, because the host is idle then; the others in forward
 * order after the last arrival. With many units, a few of the first arrivals also wait: forward
 * reads them last, so the host has work during forward. `early` adapts to the host's speed.
 */
export class SpeculationOrder<Unit> {
  private forward: readonly Unit[] = [];
  private readonly postponed = new Set<Unit>();
  private arrivals = 0;
  private readonly count = new AdaptiveCount();

  /** Units that are updated as they arrive; at first half of them. */
  get early(): number {
    return this.count.of(this.forward.length);
  }

  /** Whether the last arrival was updated at once, or left for the end of the next forward. */
  get isEarly(): boolean {
    return this.arrivals <= this.early + this.left;
  }

  /** Number of early arrivals that wait; 0 if all others are early. */
  private get left(): number {
    const units = this.forward.length;
    const max = Math.min(Math.floor(units / UNITS_PER_LEFT), units - this.early, this.early - 1);
    return Math.max(0, max);
  }

  /** The third arrival waits, the fifth, and so on. */
  private get isLeft(): boolean {
    const turn = (this.arrivals - 1) / 2;
    return Number.isInteger(turn) && turn >= 1 && turn <= this.left;
  }

  /** Starts a backward over `forward`, the units in forward order. */
  start(forward: readonly Unit[]): void {
    this.forward = forward;
    this.arrivals = 0;
    this.postponed.clear();
  }

  /** Records the arrival of `unit`. Returns whether to update it now. */
  arrive(unit: Unit): boolean {
    this.arrivals++;
    const isTaken = this.isEarly && !this.isLeft;
    if (!isTaken) this.postponed.add(unit);
    return isTaken;
  }

  /** Returns whether `unit` has arrived and was postponed. */
  isPostponed(unit: Unit): boolean {
    return this.postponed.has(unit);
  }

  /** Moves the early share by one: up if the host finished it before backward ended, else down. */
  adapt(finishedInTime: boolean): void {
    this.count.adapt(this.forward.length, finishedInTime);
  }

  /** Fixes the early share at `early` units (at most all), for measurements. */
  fix(early: number): void {
    this.count.fix(early);
  }
}

/** Starts with half of the units and adapts to the speed of a processor. */
export class AdaptiveCount {
  private chosen: number | null = null;
  private fixed = false;

  /** Returns the present number, at most `units`. */
  of(units: number): number {
    return Math.min(this.chosen ?? Math.ceil(units / 2), units);
  }

  /** Moves the number by one: up if there was time left, else down. */
  adapt(units: number, hadTime: boolean): void {
    if (this.fixed) return;
    const moved = this.of(units) + (hadTime ? 1 : -1);
    this.chosen = Math.max(0, Math.min(moved, units));
  }

  /** Fixes the number, for measurements. */
  fix(count: number): void {
    this.chosen = count;
    this.fixed = true;
  }
}
export const windowLength = 10;

/**
 * Above this share of missed steps, computing weights twice costs more than the overlap saves.
 * GPT-2 1558M with all state in host memory (H200): 310 ms for a step with a correct assumption,
 * 535 ms for a miss, 377 ms without speculation.
 */
const pauseAbove = 0.3;
/** Speculation resumes at this share: lower, because a pause begins with a commit. */
const resumeAt = 0.2;

/** A step misses if its gradients were clipped or not finite. */
export class ClipWindow {
  private readonly missed: boolean[] = [];
  private paused = false;

  get speculate(): boolean {
    return !this.paused;
  }

  /** Records a decision. A new run uses the steps so far, because most runs clip at first. */
  record(missed: boolean): void {
    this.missed.push(missed);
    if (this.missed.length > windowLength) this.missed.shift();
    const missRate = this.missed.filter(Boolean).length / this.missed.length;
    this.paused = missRate > (this.paused ? resumeAt : pauseAbove);
  }
}

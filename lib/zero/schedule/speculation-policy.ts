// Decides the order and the number of speculative updates during backward, and when they pause.

/** One postponed unit per this many: three with 24 or more units on one processor. */
const UNITS_PER_POSTPONED = 8;

/**
 * Backward completes units last to first; the next forward reads them first to last. The first
 * `earlyCount` arrivals are updated as they arrive, because the host is idle then; the others in
 * forward order after the last arrival. With many units, a few of the first arrivals also wait:
 * forward reads them last, so the host has work during forward. `earlyCount` adapts to the host's
 * speed.
 */
export class SpeculationOrder<Unit> {
  private forward: readonly Unit[] = [];
  private readonly postponed = new Set<Unit>();
  private arrivals = 0;
  private readonly count = new AdaptiveCount();

  /** Number of units that are updated as they arrive; at first half of them. */
  get earlyCount(): number {
    return this.count.limitedTo(this.forward.length);
  }

  /** Whether the last arrival was updated at once, or left for the end of the next forward. */
  get isEarly(): boolean {
    return this.arrivals <= this.earlyCount + this.postponedCount;
  }

  /** Number of early arrivals that wait; 0 if all others are early. */
  private get postponedCount(): number {
    const units = this.forward.length;
    const max = Math.min(
      Math.floor(units / UNITS_PER_POSTPONED),
      units - this.earlyCount,
      this.earlyCount - 1,
    );
    return Math.max(0, max);
  }

  /** Whether this arrival waits: the third, the fifth, and so on. */
  private get isPostponedArrival(): boolean {
    const postponed = (this.arrivals - 1) / 2;
    return Number.isInteger(postponed) && postponed >= 1 && postponed <= this.postponedCount;
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
    const isUpdatedNow = this.isEarly && !this.isPostponedArrival;
    if (!isUpdatedNow) this.postponed.add(unit);
    return isUpdatedNow;
  }

  /** Returns whether `unit` has arrived and was postponed. */
  isPostponed(unit: Unit): boolean {
    return this.postponed.has(unit);
  }

  /** Moves the early share by one: up if the host finished it before backward ended, else down. */
  adapt(finishedInTime: boolean): void {
    this.count.adapt(this.forward.length, finishedInTime);
  }

  /** Fixes the early share at `earlyCount` units (at most all), for measurements. */
  fix(early: number): void {
    this.count.fix(early);
  }
}

/** A number of units that starts with half of all and adapts to the speed of a processor. */
export class AdaptiveCount {
  private count: number | null = null;
  private isFixed = false;

  /** Returns the present number, at most `units`. */
  limitedTo(units: number): number {
    return Math.min(this.count ?? Math.ceil(units / 2), units);
  }

  /** Moves the number by one: up if there was time left, else down. */
  adapt(units: number, hadTime: boolean): void {
    if (this.isFixed) return;
    const moved = this.limitedTo(units) + (hadTime ? 1 : -1);
    this.count = Math.max(0, Math.min(moved, units));
  }

  /** Fixes the number, for measurements. */
  fix(count: number): void {
    this.count = count;
    this.isFixed = true;
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

/**
 * Pauses speculation if too many of the last steps missed: their gradients were clipped or not
 * finite.
 */
export class ClipWindow {
  private readonly missed: boolean[] = [];
  private isPaused = false;

  get isSpeculative(): boolean {
    return !this.isPaused;
  }

  /** Records a decision. A new run uses the steps so far, because most runs clip at first. */
  record(missed: boolean): void {
    this.missed.push(missed);
    if (this.missed.length > windowLength) this.missed.shift();
    const missRate = this.missed.filter(Boolean).length / this.missed.length;
    this.isPaused = missRate > (this.isPaused ? resumeAt : pauseAbove);
  }
}

// Decides how many units SuperOffload updates during backward, their order, and when speculation
// pauses.

/** One of this many units is postponed: three units with 24 or more units on one processor. */
const UNITS_PER_POSTPONED = 8;

/**
 * Selects the units to update during backward. Backward completes the last layers first, but the
 * next forward reads the first layers first. The host is idle early in backward, so it updates the
 * first `earlyCount` arrivals at once. It updates the others after the last arrival, in forward
 * order.
 *
 * With many units, a few of the early arrivals are postponed too. Forward reads them last, so the
 * host has work during forward. `earlyCount` adapts to the speed of the host.
 */
export class SpeculationOrder<Unit> {
  private forward: readonly Unit[] = [];
  private readonly postponed = new Set<Unit>();
  private arrivals = 0;
  private readonly count = new AdaptiveCount();

  /** Number of units that are updated as they arrive. Starts at half of them. */
  get earlyCount(): number {
    return this.count.limitedTo(this.forward.length);
  }

  /** Whether the last arrival is one of the early ones, including postponed ones. */
  get isEarly(): boolean {
    return this.arrivals <= this.earlyCount + this.postponedCount;
  }

  /** Number of early arrivals to postpone. It is 0 if all units are early. */
  private get postponedCount(): number {
    const units = this.forward.length;
    const max = Math.min(
      Math.floor(units / UNITS_PER_POSTPONED),
      units - this.earlyCount,
      this.earlyCount - 1,
    );
    return Math.max(0, max);
  }

  /**
   * Whether to postpone this arrival. Every second arrival from the third on is postponed, up to
   * the count.
   */
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

  /**
   * Moves `earlyCount` by one: up if the host finished the early units before backward ended, else
   * down.
   */
  adapt(finishedInTime: boolean): void {
    this.count.adapt(this.forward.length, finishedInTime);
  }

  /** Sets `earlyCount` to at most `early` and stops its adaptation. For measurements. */
  fix(early: number): void {
    this.count.fix(early);
  }
}

/** A number of units. It starts at half of all units and adapts to the speed of a processor. */
export class AdaptiveCount {
  private count: number | null = null;
  private isFixed = false;

  /** Returns the present number, at most `units`. */
  limitedTo(units: number): number {
    return Math.min(this.count ?? Math.ceil(units / 2), units);
  }

  /** Moves the number by one: up if the processor had time left, else down. */
  adapt(units: number, hadTime: boolean): void {
    if (this.isFixed) return;
    const moved = this.limitedTo(units) + (hadTime ? 1 : -1);
    this.count = Math.max(0, Math.min(moved, units));
  }

  /** Sets the number and stops its adaptation. For measurements. */
  fix(count: number): void {
    this.count = count;
    this.isFixed = true;
  }
}
export const windowLength = 10;

/**
 * If a larger share of the last steps missed, speculation costs more than it saves: a miss computes
 * the weights twice. GPT-2 1558M with all state in host memory (H200): 310 ms for a hit, 535 ms for
 * a miss, 377 ms without speculation.
 */
const pauseAbove = 0.3;
/**
 * Speculation resumes at this share. It is lower than pauseAbove, because a pause begins with a
 * commit.
 */
const resumeAt = 0.2;

/**
 * Counts misses over the last steps. A step misses if its gradients are clipped or not finite. If
 * too many steps miss, speculation pauses.
 */
export class ClipWindow {
  private readonly missed: boolean[] = [];
  private isPaused = false;

  get isSpeculative(): boolean {
    return !this.isPaused;
  }

  /**
   * Records a step. The window counts fewer than `windowLength` steps at the start, because most
   * runs clip their first gradients.
   */
  record(missed: boolean): void {
    this.missed.push(missed);
    if (this.missed.length > windowLength) this.missed.shift();
    const missRate = this.missed.filter(Boolean).length / this.missed.length;
    this.isPaused = missRate > (this.isPaused ? resumeAt : pauseAbove);
  }
}

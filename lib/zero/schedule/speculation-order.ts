// In which order units are updated while backward runs: a share as they arrive, the rest as forward
// needs them.
import { AdaptiveCount } from './adaptive-count.js';

/** One in so many waits: three of the units of a model with 24 or more on one processor. */
const UNITS_PER_LEFT = 8;

/**
 * Backward completes units last to first, the next forward reads them first to last. The first
 * `early` arrivals are taken as they come, for the host has nothing better to do; the others are
 * postponed until all have arrived, and taken in forward order then. `early` follows the host's
 * speed and never changes a number. Of many units a few of the first arrivals wait as well, while
 * others that have arrived keep the host busy: forward comes to them last, so that the host has
 * work under the forward of all those that were taken early.
 */
export class SpeculationOrder<Unit> {
  private forward: readonly Unit[] = [];
  private readonly postponed = new Set<Unit>();
  private arrivals = 0;
  private readonly count = new AdaptiveCount();

  /** Units taken as they arrive; half of them at first. */
  get early(): number {
    return this.count.of(this.forward.length);
  }

  /**
   * Whether the unit that arrived last was taken at once, or left for the end of the next forward.
   */
  get inEarlyShare(): boolean {
    return this.arrivals <= this.early + this.left;
  }

  /** Early arrivals that wait: none where all others are taken early. */
  private get left(): number {
    const units = this.forward.length;
    const most = Math.min(Math.floor(units / UNITS_PER_LEFT), units - this.early, this.early - 1);
    return Math.max(0, most);
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

  /** `unit` has arrived: whether to take it now. */
  arrive(unit: Unit): boolean {
    this.arrivals++;
    const isTaken = this.inEarlyShare && !this.isLeft;
    if (!isTaken) this.postponed.add(unit);
    return isTaken;
  }

  /** Whether `unit` has arrived and was not taken then. */
  isPostponed(unit: Unit): boolean {
    return this.postponed.has(unit);
  }

  /**
   * Moves the early share by one: up when the host had finished it before backward ended, else
   * down.
   */
  adapt(finishedInTime: boolean): void {
    this.count.adapt(this.forward.length, finishedInTime);
  }

  /** Keeps the early share at `early` units (at most all), for measurements. */
  fix(early: number): void {
    this.count.fix(early);
  }
}

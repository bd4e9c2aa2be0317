// In which order units are updated while backward runs: a share as they arrive, the rest as forward needs them.
import { AdaptiveCount } from './adaptive-count.js';

/**
 * Backward completes units last to first, the next forward reads them first to last. The first `early` arrivals are
 * taken as they come, for the host has nothing better to do; the others wait until the last one has arrived, and are
 * then taken in forward order. `early` follows the host's speed and never changes a number.
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

  /** Whether the unit that arrived last was taken at once. */
  get inEarlyShare(): boolean {
    return this.arrivals <= this.early;
  }

  /** Starts a backward over `forward`, the units in forward order. */
  start(forward: readonly Unit[]): void {
    this.forward = forward;
    this.arrivals = 0;
    this.postponed.clear();
  }

  /** `unit` has arrived: the units to take now, in this order. */
  arrive(unit: Unit): readonly Unit[] {
    this.arrivals++;
    if (this.inEarlyShare) return [unit];
    this.postponed.add(unit);
    if (this.arrivals < this.forward.length) return [];
    return this.forward.filter((candidate) => this.postponed.has(candidate));
  }

  /** Moves the early share by one: up when the host had finished it before backward ended, else down. */
  adapt(finishedInTime: boolean): void {
    this.count.adapt(this.forward.length, finishedInTime);
  }

  /** Keeps the early share at `early` units (at most all), for measurements. */
  fix(early: number): void {
    this.count.fix(early);
  }
}

// The order in which units were used in the last step: what to fetch next, and what will soon be
// needed again.
import type { WeightUnit } from './weight-unit.js';

/** Uses remembered without an update between them: evaluation has none. */
const LIMIT = 10_000;

/** Adapts when the order changes: until it finds its place again, it foresees nothing. */
export class UnitTrace {
  protected last: WeightUnit[] = [];
  protected current: WeightUnit[] = [];
  /** Index in `last` of the unit in use; null where the order is unknown. */
  protected place: number | null = null;
  /** The last index that was known in this step; -1 before any. */
  private known = -1;

  /** A unit is used, after those before it; repeated uses in a row count once. */
  visit(unit: WeightUnit): void {
    if (this.current.at(-1) === unit) return;
    if (this.current.length === LIMIT) this.restart();
    this.current.push(unit);
    const found = this.last.indexOf(unit, this.known + 1);
    this.place = found < 0 ? null : found;
    this.known = this.place ?? this.known;
  }

  /** A step has ended: the coming one is expected to repeat it. */
  restart(): void {
    if (this.current.length === 0) return;
    this.last = this.current;
    this.current = [];
    this.place = null;
    this.known = -1;
  }

  /** The units used after the present one, in order, as far as is known. */
  upcoming(): readonly WeightUnit[] {
    return this.place === null ? [] : this.last.slice(this.place + 1);
  }

  /** Between a step and the next: the units that it is expected to use, in order. */
  beginning(): readonly WeightUnit[] {
    return this.current.length === 0 ? this.last : [];
  }

  /**
   * Elements of other units that are used before `unit` is again; infinite where it is not
   * foreseen.
   */
  reuseDistance(unit: WeightUnit): number {
    let distance = 0;
    for (const next of this.upcoming()) {
      if (next === unit) return distance;
      distance += next.layout.numel;
    }
    return Number.POSITIVE_INFINITY;
  }
}

/**
 * The same where no update ends a step: one forward follows another, and a unit that comes again
 * begins the next one, which is expected to repeat the last.
 */
export class PassTrace extends UnitTrace {
  override visit(unit: WeightUnit): void {
    if (this.current.at(-1) !== unit && this.current.includes(unit)) this.restart();
    super.visit(unit);
  }

  /** Behind the end of a forward comes the beginning of another. */
  override upcoming(): readonly WeightUnit[] {
    return this.place === null ? [] : [...super.upcoming(), ...this.last.slice(0, this.place + 1)];
  }
}

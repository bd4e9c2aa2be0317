// UnitTrace: the order of units in the last step, to prefetch units and to predict reuse.
import type { WeightUnit } from './unit.js';

/** Maximum uses without an update. Evaluation has no updates. */
const LIMIT = 10_000;

/** Adapts if the order changes. Until it finds its position again, it predicts nothing. */
export class UnitTrace {
  private last: WeightUnit[] = [];
  private current: WeightUnit[] = [];
  /** Index in `last` of the present unit; null if the order is unknown. */
  private position: number | null = null;
  /** The last known index in this step; -1 before any. */
  private known = -1;

  /**
   * `onlyForwards`: without updates, forwards follow each other. A repeated unit begins the next
   * forward, which is expected to repeat the last one.
   */
  constructor(private readonly onlyForwards = false) {}

  /** Records the use of a unit. Repeated uses in a row count once. */
  visit(unit: WeightUnit): void {
    if (this.current.at(-1) === unit) return;
    const isNext = this.onlyForwards && this.current.includes(unit);
    if (isNext || this.current.length === LIMIT) this.restart();
    this.current.push(unit);
    const found = this.last.indexOf(unit, this.known + 1);
    this.position = found < 0 ? null : found;
    this.known = this.position ?? this.known;
  }

  /** Ends a step. The next step is expected to repeat it. */
  restart(): void {
    if (this.current.length === 0) return;
    this.last = this.current;
    this.current = [];
    this.position = null;
    this.known = -1;
  }

  /** Returns the known next units, in order: of this step, or also of the next forward. */
  nextUnits(): readonly WeightUnit[] {
    if (this.position === null) return [];
    const next = this.position + 1;
    const rest = this.last.slice(next);
    return this.onlyForwards ? [...rest, ...this.last.slice(0, next)] : rest;
  }

  /** Between steps: returns the units that the next step is expected to use, in order. */
  firstUnits(): readonly WeightUnit[] {
    return this.current.length === 0 ? this.last : [];
  }

  /** Returns the elements of other units before the next use of `unit`; infinite if unknown. */
  reuseDistance(unit: WeightUnit): number {
    let distance = 0;
    for (const next of this.nextUnits()) {
      if (next === unit) return distance;
      distance += next.layout.numel;
    }
    return Number.POSITIVE_INFINITY;
  }
}

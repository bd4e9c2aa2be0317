// Adapts the number of units that a schedule handles early, by the time that the last steps had.

/**
 * Starts with half of the units. It adapts to the speed of a processor and does not change results.
 */
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

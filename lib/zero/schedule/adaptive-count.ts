// How many of a model's units a schedule treats in one of two ways, by what the last steps had time
// for.

/** Half of the units at first. It follows a processor's speed and never changes a number. */
export class AdaptiveCount {
  private chosen: number | null = null;
  private fixed = false;

  /** At most `units`. */
  of(units: number): number {
    return Math.min(this.chosen ?? Math.ceil(units / 2), units);
  }

  /** Moves it by one: up when there was time to spare, else down. */
  adapt(units: number, hadTime: boolean): void {
    if (this.fixed) return;
    const moved = this.of(units) + (hadTime ? 1 : -1);
    this.chosen = Math.max(0, Math.min(moved, units));
  }

  /** Keeps it, for measurements. */
  fix(count: number): void {
    this.chosen = count;
    this.fixed = true;
  }
}

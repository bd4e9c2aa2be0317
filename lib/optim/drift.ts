// Drift: records local updates of a rank since all ranks had equal weights, with their learning
// rates.

interface LocalUpdate {
  readonly step: number;
  /** By group. */
  readonly rates: readonly number[];
  /** Makes the weights of all ranks equal. */
  readonly ends: boolean;
}

/**
 * A device may skip an update, and the host learns it later. The next update then reuses its
 * number, and the record of the skipped one is dropped.
 */
export class Drift {
  private updates: LocalUpdate[] = [];

  /** Whether a local update is possible, by the present knowledge of the host. */
  get isOpen(): boolean {
    return (this.updates.at(-1)?.ends ?? true) === false || this.updates.length > 1;
  }

  /**
   * Records an update; earlier updates are now certain. Returns whether it is the first one since
   * the weights were equal.
   */
  begin(update: LocalUpdate): boolean {
    this.keep(update.step - 1);
    this.updates.push(update);
    return this.updates.length === 1;
  }

  /** Returns the sums of learning rates by group since the weights were equal. */
  rates(): number[] {
    const sums: number[] = [];
    for (const { rates } of this.updates) {
      rates.forEach((rate, group) => {
        sums[group] = (sums[group] ?? 0) + rate;
      });
    }
    return sums;
  }

  /**
   * Returns the sums up to update `applied`, after which all ranks get equal weights; null if they
   * have them.
   */
  end(applied: number): number[] | null {
    this.keep(applied);
    const rates = this.updates.length > 0 ? this.rates() : null;
    this.updates = [];
    return rates;
  }

  /** Drops the records of updates that were skipped or ended up to number `last`. */
  private keep(last: number): void {
    const made = this.updates.filter(({ step }) => step <= last);
    const ended = made.findLastIndex(({ ends }) => ends);
    this.updates = made.slice(ended + 1);
  }
}

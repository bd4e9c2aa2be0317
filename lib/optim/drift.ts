// Updates that a rank has made by itself since all ranks had the same weights: which, and at what
// rates.

interface LocalUpdate {
  readonly step: number;
  /** By group. */
  readonly rates: readonly number[];
  /** After it all ranks have the same weights again. */
  readonly ends: boolean;
}

/**
 * A device may skip an update, which the host learns later: the next update then has its number,
 * and what was noted of it never was.
 */
export class Drift {
  private updates: LocalUpdate[] = [];

  /** Whether some may have been made, by what is known so far. */
  get isOpen(): boolean {
    return (this.updates.at(-1)?.ends ?? true) === false || this.updates.length > 1;
  }

  /**
   * Notes an update; those before it are certain. Returns whether it is the first since the weights
   * were the same.
   */
  begin(update: LocalUpdate): boolean {
    this.keep(update.step - 1);
    this.updates.push(update);
    return this.updates.length === 1;
  }

  /** Sums by group of the rates of what was noted since the weights were the same. */
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
   * All ranks are about to have the same weights, after `applied` updates: the sums until there;
   * null where they have them.
   */
  end(applied: number): number[] | null {
    this.keep(applied);
    const rates = this.updates.length > 0 ? this.rates() : null;
    this.updates = [];
    return rates;
  }

  /** Those up to number `last` have been made, and no others. */
  private keep(last: number): void {
    const made = this.updates.filter(({ step }) => step <= last);
    const ended = made.findLastIndex(({ ends }) => ends);
    this.updates = made.slice(ended + 1);
  }
}

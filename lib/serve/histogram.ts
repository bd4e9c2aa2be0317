// Histograms and metrics in Prometheus' text format.
import { required } from '../runtime/required.js';

/** Counts observations by upper bound, and sums them. */
export class Histogram {
  private readonly counts: number[];
  private total = 0;
  private sum = 0;

  /** `bounds` must ascend. */
  constructor(private readonly bounds: readonly number[]) {
    this.counts = bounds.map(() => 0);
  }

  /** Adds `times` observations of `value`. */
  observe(value: number, times = 1): void {
    const slot = this.bounds.findIndex((bound) => value <= bound);
    if (slot >= 0) this.counts[slot] = required(this.counts[slot]) + times;
    this.total += times;
    this.sum += value * times;
  }

  /** Returns the lines of the metric `name`. */
  lines(name: string): string[] {
    let below = 0;
    const buckets = this.bounds.map((bound, i) => {
      below += required(this.counts[i]);
      return `${name}_bucket{le="${bound}"} ${below}`;
    });
    const totalLine = `${name}_bucket{le="+Inf"} ${this.total}`;
    return [...buckets, totalLine, `${name}_sum ${this.sum}`, `${name}_count ${this.total}`];
  }
}

/** Returns the lines of one metric, with HELP and TYPE. */
export function formatMetric(
  name: string,
  type: 'gauge' | 'counter' | 'histogram',
  help: string,
  lines: readonly string[],
): string {
  return [`# HELP ${name} ${help}`, `# TYPE ${name} ${type}`, ...lines, ''].join('\n');
}

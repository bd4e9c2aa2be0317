// Prometheus's histograms and its text format.
import { required } from '../runtime/required.js';

/** Counts of observations up to each bound, and their sum. */
export class Histogram {
  private readonly counts: number[];
  private total = 0;
  private sum = 0;

  /** `bounds` ascend. */
  constructor(private readonly bounds: readonly number[]) {
    this.counts = bounds.map(() => 0);
  }

  /** `value` was seen `times` times. */
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
    const whole = `${name}_bucket{le="+Inf"} ${this.total}`;
    return [...buckets, whole, `${name}_sum ${this.sum}`, `${name}_count ${this.total}`];
  }
}

/** One metric in Prometheus format, with HELP and TYPE lines. */
export function metric(
  name: string,
  type: 'gauge' | 'counter' | 'histogram',
  help: string,
  lines: readonly string[],
): string {
  return [`# HELP ${name} ${help}`, `# TYPE ${name} ${type}`, ...lines, ''].join('\n');
}

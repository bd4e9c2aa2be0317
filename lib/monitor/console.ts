// Prints the console lines of steps_per_print and wall_clock_breakdown, in DeepSpeed's format.

import { namesOf, readOptions } from '../runtime/options.js';
import { requireInteger } from '../runtime/require-number.js';

/** The values of one progress line. */
export interface ProgressReport {
  /** Number of completed global steps. */
  step: number;
  /** Number of processed global samples. */
  samples: number;
  /** Number of updates that were skipped because of an overflow. */
  skipped: number;
  /** Learning rate of each parameter group. */
  lr: readonly number[];
  /** Momentum or betas of each parameter group. */
  momentum: readonly unknown[];
  /** Mean loss over micro-batches and ranks, or null if unknown. */
  loss: number | null;
}

/** Options of a ConsoleMonitor. */
export interface ConsoleOptions {
  /** Global steps between two lines. */
  every: number;
  /** The output. Default: process.stdout. */
  stream?: { write(text: string): unknown };
  /** Clock in milliseconds. Default: performance.now. */
  now?: () => number;
}

/** Prints every N-th step. */
export class ConsoleMonitor {
  private readonly every: number;
  private readonly stream: { write(text: string): unknown };
  private readonly now: () => number;
  private last: { samples: number; time: number } | null = null;

  /** Throws DS_ARGUMENT unless `every` is an integer from 1. */
  constructor(given: ConsoleOptions) {
    const options = readOptions('ConsoleMonitor', given, namesOf.ConsoleOptions);
    const { every, stream = process.stdout, now = () => performance.now() } = options;
    this.every = requireInteger('ConsoleMonitor every', every, 1);
    this.stream = stream;
    this.now = now;
  }

  /**
   * Prints "step=20, skipped=0, lr=[0.001], mom=[[0.9, 0.999]], loss=4.8713, samples/s=512.0".
   *
   * The rate covers the wall-clock time since the previous line, or since the first reported step.
   */
  progress({ step, samples, skipped, lr, momentum, loss }: ProgressReport): void {
    const time = this.now();
    const previous = this.last;
    this.last ??= { samples, time };
    if (step % this.every !== 0) return;
    const formatList = (values: readonly unknown[]): string =>
      JSON.stringify(values).replaceAll(',', ', ');
    const rate = previous ? (1000 * (samples - previous.samples)) / (time - previous.time) : null;
    const rateText = rate === null ? '' : `, samples/s=${rate.toFixed(1)}`;
    const lossText = loss === null ? '' : `, loss=${loss.toPrecision(5)}`;
    const rates = `lr=${formatList(lr)}, mom=${formatList(momentum)}`;
    this.print(`step=${step}, skipped=${skipped}, ${rates}${lossText}${rateText}`);
    this.last = { samples, time };
  }

  /** Prints "step=20, time (ms) | forward: 1.23 | backward: 2.46 | step: 0.31". */
  times(step: number, milliseconds: Readonly<Record<string, number>>): void {
    if (step % this.every !== 0) return;
    const phases = Object.entries(milliseconds).map(([name, ms]) => `${name}: ${ms.toFixed(2)}`);
    this.print(`step=${step}, time (ms) | ${phases.join(' | ')}`);
  }

  private print(line: string): void {
    this.stream.write(`${line}\n`);
  }
}

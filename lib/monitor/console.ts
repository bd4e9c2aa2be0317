// Console lines of steps_per_print and wall_clock_breakdown, in DeepSpeed's words.

import { type OptionNames, readOptions } from '../runtime/options.js';
import { requireInteger } from '../runtime/require-number.js';

/** What one line says of the run. */
export interface ProgressReport {
  /** Global steps so far. */
  step: number;
  /** Global samples so far. */
  samples: number;
  /** Updates left out for an overflow so far. */
  skipped: number;
  /** Of each parameter group. */
  lr: readonly number[];
  /** Momentum or betas of each parameter group. */
  momentum: readonly unknown[];
  /** Mean over micro-batches and ranks; null where it is not known. */
  loss: number | null;
}

/** How often a ConsoleMonitor prints, and where. */
export interface ConsoleOptions {
  /** Global steps between two lines. */
  every: number;
  /** Default: process.stdout. */
  stream?: { write(text: string): unknown };
  /** Milliseconds of a clock; default performance.now. */
  now?: () => number;
}

const OPTIONS: OptionNames<ConsoleOptions> = { every: true, stream: true, now: true };

/** Prints every N-th of the steps that it hears of. */
export class ConsoleMonitor {
  private readonly every: number;
  private readonly stream: { write(text: string): unknown };
  private readonly now: () => number;
  private last: { samples: number; time: number } | null = null;

  /** Throws DS_ARGUMENT. */
  constructor(given: ConsoleOptions) {
    const options = readOptions('ConsoleMonitor', given, OPTIONS);
    const { every, stream = process.stdout, now = () => performance.now() } = options;
    this.every = requireInteger('ConsoleMonitor every', every, 1);
    this.stream = stream;
    this.now = now;
  }

  /**
   * "step=20, skipped=0, lr=[0.001], mom=[[0.9, 0.999]], loss=4.8713, samples/s=512.0". The rate is
   * that of the wall clock since the line before, or since the first step heard of.
   */
  progress({ step, samples, skipped, lr, momentum, loss }: ProgressReport): void {
    const time = this.now();
    const since = this.last;
    this.last ??= { samples, time };
    if (step % this.every !== 0) return;
    const list = (values: readonly unknown[]): string =>
      JSON.stringify(values).replaceAll(',', ', ');
    const rate = since ? (1000 * (samples - since.samples)) / (time - since.time) : null;
    const speed = rate === null ? '' : `, samples/s=${rate.toFixed(1)}`;
    const fit = loss === null ? '' : `, loss=${loss.toPrecision(5)}`;
    const rates = `lr=${list(lr)}, mom=${list(momentum)}`;
    this.print(`step=${step}, skipped=${skipped}, ${rates}${fit}${speed}`);
    this.last = { samples, time };
  }

  /** "step=20, time (ms) | forward: 1.23 | backward: 2.46 | step: 0.31" */
  times(step: number, milliseconds: Readonly<Record<string, number>>): void {
    if (step % this.every !== 0) return;
    const phases = Object.entries(milliseconds).map(([name, ms]) => `${name}: ${ms.toFixed(2)}`);
    this.print(`step=${step}, time (ms) | ${phases.join(' | ')}`);
  }

  private print(line: string): void {
    this.stream.write(`${line}\n`);
  }
}

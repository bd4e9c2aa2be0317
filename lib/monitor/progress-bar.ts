// Prints training progress on a console: a bar on a terminal, plain lines otherwise.

import { formatDuration } from '../runtime/format-duration.js';
import { valueError } from '../runtime/input-errors.js';
import { namesOf, readOptions } from '../runtime/options.js';
import { requireInteger } from '../runtime/require-number.js';

/** The values after a step. Only given values are shown. */
export interface StepReport {
  /** Number of completed steps, from 1. */
  step: number;
  /** Mean loss over all ranks, as monitors get it. */
  loss?: number;
  /** Learning rate of the step. */
  lr?: number;
  /** Tokens per second of all ranks. */
  tokensPerSecond?: number;
  /**
   * Model FLOPs utilization, from 0 to 1. Default: from tokensPerSecond, if the bar has
   * flopsPerToken and peakFlops.
   */
  mfu?: number;
  /** Bytes in use on this rank's device. */
  memoryBytes?: number;
}

/** Options of a ProgressBar. */
export interface ProgressBarOptions {
  /** Total number of steps. */
  total: number;
  /** The output. Default: process.stdout. */
  stream?: NodeJS.WriteStream;
  /** Total number of lines if the stream is not a terminal. Default: 20. */
  lines?: number;
  /** FLOPs per token, from flopsPerToken(). */
  flopsPerToken?: number;
  /**
   * Peak FLOP/s of all devices: peakFlops() times their number. Null if unknown. Needed for MFU,
   * with flopsPerToken.
   */
  peakFlops?: number | null;
  /** Clock in milliseconds. Default: performance.now. */
  now?: () => number;
}

/** Maximum columns of a line. */
const COLUMNS = 80;
const LONGEST_BAR = 24;
const SHORTEST_BAR = 8;

/**
 * Returns a line of fewer than `columns` columns:
 *
 *     "[=====-----]  60/120  loss 5.321  9,812 tokens/s  MFU 41.2%  412 MiB  1:23 left"
 *
 * The bar uses the free columns. If they are too few, drops the learning rate, memory, MFU and
 * speed, in this order. `secondsLeft` null: unknown.
 */
export function progressLine(
  total: number,
  report: StepReport,
  secondsLeft: number | null = null,
  columns = COLUMNS,
): string {
  const step = `${`${report.step}`.padStart(`${total}`.length)}/${total}`;
  let parts = formatParts(report, secondsLeft);
  const width = (): number =>
    parts.reduce((sum, { text }) => sum + text.length + 2, step.length) + SHORTEST_BAR + 3;
  while (width() >= columns && parts.some(({ order }) => order > 0)) {
    const min = Math.max(...parts.map(({ order }) => order));
    parts = parts.filter(({ order }) => order !== min);
  }
  const text = [step, ...parts.map((part) => part.text)].join('  ');
  const barColumns = Math.min(LONGEST_BAR, columns - text.length - 4);
  if (barColumns < SHORTEST_BAR) return text.slice(0, Math.max(1, columns - 1));
  const done = Math.round((barColumns * Math.min(report.step, total)) / Math.max(1, total));
  return `[${'='.repeat(done).padEnd(barColumns, '-')}] ${text}`;
}

/** Returns the values as texts in display order. Parts with a higher `order` are dropped first. */
function formatParts(
  report: StepReport,
  secondsLeft: number | null,
): { text: string; order: number }[] {
  const { loss, lr, tokensPerSecond, mfu, memoryBytes } = report;
  const formatInteger = (value: number): string => Math.round(value).toLocaleString('en');
  const parts: [number, string | undefined][] = [
    [0, loss === undefined ? undefined : `loss ${loss.toFixed(3)}`],
    [4, lr === undefined ? undefined : `lr ${lr.toExponential(2)}`],
    [1, tokensPerSecond === undefined ? undefined : `${formatInteger(tokensPerSecond)} tokens/s`],
    [2, mfu === undefined ? undefined : `MFU ${(100 * mfu).toFixed(1)}%`],
    [3, memoryBytes === undefined ? undefined : `${formatInteger(memoryBytes / 2 ** 20)} MiB`],
    [0, secondsLeft === null ? undefined : `${formatDuration(secondsLeft)} left`],
  ];
  return parts.flatMap(([order, text]) => (text === undefined ? [] : [{ text, order }]));
}

/**
 * Prints the progress of a run. One rank constructs and updates it. Without a terminal, it prints
 * the first, the last and about `lines` steps in between.
 *
 * The time left is the number of remaining steps, at the mean speed since the first update.
 */
export class ProgressBar {
  private readonly total: number;
  private readonly stream: NodeJS.WriteStream;
  private readonly every: number;
  private readonly now: () => number;
  /** Tokens per second at an MFU of 1, or null if unknown. */
  private readonly peakSpeed: number | null;
  private first: { step: number; time: number } | null = null;
  private drawn = false;

  /** Throws DS_ARGUMENT unless `total` is an integer from 0. */
  constructor(given: ProgressBarOptions) {
    const options = readOptions('ProgressBar', given, namesOf.ProgressBarOptions);
    const { total, stream = process.stdout, lines = 20, now = () => performance.now() } = options;
    this.total = requireInteger('ProgressBar total', total, 0);
    requireInteger('ProgressBar lines', lines, 1);
    this.stream = stream;
    this.every = Math.max(1, Math.ceil(total / lines));
    this.now = now;
    this.peakSpeed = peakTokensPerSecond(options);
  }

  /** Redraws the bar with the values of a step. */
  update(given: StepReport): void {
    const { total, stream } = this;
    const report = { ...given, mfu: given.mfu ?? this.utilization(given.tokensPerSecond) };
    const { step } = report;
    const isFirst = this.first === null;
    this.first ??= { step, time: this.now() };
    const columns = Math.min(COLUMNS, (stream.isTTY && stream.columns) || COLUMNS);
    const line = progressLine(total, report, this.secondsLeft(step), columns);
    if (stream.isTTY) {
      stream.write(`\r\x1b[2K${line}`);
      this.drawn = true;
    } else if (isFirst || step === total || step % this.every === 0) {
      stream.write(`${line}\n`);
    }
  }

  /** Keeps the last line on the terminal. */
  finish(): void {
    if (this.drawn) this.stream.write('\n');
    this.drawn = false;
  }

  private utilization(tokensPerSecond: number | undefined): number | undefined {
    const { peakSpeed } = this;
    return peakSpeed === null || tokensPerSecond === undefined
      ? undefined
      : tokensPerSecond / peakSpeed;
  }

  private secondsLeft(step: number): number | null {
    const { first } = this;
    if (!first || step <= first.step) return null;
    const each = (this.now() - first.time) / (step - first.step);
    return (each * Math.max(0, this.total - step)) / 1000;
  }
}

function peakTokensPerSecond({ flopsPerToken, peakFlops }: ProgressBarOptions): number | null {
  const cost = requirePositive('flopsPerToken', flopsPerToken);
  const peak = requirePositive('peakFlops', peakFlops);
  return cost === null || peak === null ? null : peak / cost;
}

/** Returns a positive number, or null if it is missing. */
function requirePositive(name: string, value: number | null | undefined): number | null {
  if (value === undefined || value === null) return null;
  if (value > 0 && value < Number.POSITIVE_INFINITY) return value;
  const [op, expected] = [`ProgressBar ${name}`, 'a positive, finite number'];
  throw valueError(op, expected, value);
}

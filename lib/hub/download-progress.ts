// Prints the progress of a download to stderr: a bar on a terminal, lines elsewhere.
import { formatDuration } from '../runtime/format-duration.js';
import { required } from '../runtime/required.js';

const COLUMNS = 80;
/** Milliseconds between two updates of the bar, and between two lines. */
const [DRAW_MS, LINE_MS] = [100, 10_000];
/** Length in milliseconds of the window of the mean rate. */
const WINDOW_MS = 5000;

/** The output stream of the progress. */
interface ProgressStream {
  readonly isTTY?: boolean;
  readonly columns?: number;
  write(text: string): unknown;
}

/** Formats bytes in decimal units, as the hub and disks do. */
export function formatDecimalBytes(bytes: number): string {
  const units = ['B', 'kB', 'MB', 'GB', 'TB'];
  let value = bytes;
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${unit === 0 ? value : value.toPrecision(3)} ${units[unit]}`;
}

/** Counts bytes and prints the progress. Prints nothing until a download begins. */
export class DownloadProgress {
  private total = 0;
  private done = 0;
  private fetched = 0;
  private begunAt: number | null = null;
  private isDrawn = false;
  private printedAt = 0;
  private readonly samples: { time: number; fetched: number }[] = [];

  constructor(
    private readonly name: string,
    /** The output; null to print nothing. */
    private readonly stream: ProgressStream | null,
    private readonly now: () => number = () => performance.now(),
  ) {}

  /** Adds bytes to the total. */
  addTotal(bytes: number): void {
    this.total += bytes;
  }

  /** Counts bytes that are already in the cache. */
  addCached(bytes: number): void {
    this.done += bytes;
  }

  /** Counts downloaded bytes; a negative number if they must be downloaded again. */
  addDownloaded(bytes: number): void {
    const now = this.now();
    if (this.begunAt === null) this.begin(now);
    this.done += bytes;
    this.fetched += Math.max(0, bytes);
    const isDue = now - this.printedAt >= (this.stream?.isTTY ? DRAW_MS : LINE_MS);
    if (isDue) this.draw(now);
  }

  /** Clears the bar and prints a line. */
  printLine(text: string): void {
    this.clear();
    this.stream?.write(`${text}\n`);
  }

  /** Ends the bar. After a download, prints the total time. */
  finish(isWhole: boolean): void {
    if (this.begunAt === null) return;
    const seconds = Math.max(1e-3, (this.now() - this.begunAt) / 1000);
    const rate = formatDecimalBytes(Math.round(this.fetched / seconds));
    const state = isWhole ? 'downloaded' : 'stopped after';
    this.printLine(
      `${this.name}: ${state} ${formatDecimalBytes(this.fetched)} in ${formatDuration(seconds)} (${rate}/s)`,
    );
    this.begunAt = null;
  }

  /** Returns the progress on one line of fewer than `columns` columns. */
  formatLine(columns: number, now = this.now()): string {
    const { done, total } = this;
    const share = total > 0 ? Math.min(1, Math.max(0, done / total)) : 1;
    const rate = this.computeRate(now);
    const left = rate > 0 ? `${formatDuration(Math.max(0, total - done) / rate)} left` : '';
    const numbers = [
      `${Math.floor(100 * share)}%`.padStart(4),
      `${formatDecimalBytes(Math.max(0, done))} of ${formatDecimalBytes(total)}`,
      `${formatDecimalBytes(Math.round(rate))}/s`,
      left,
    ];
    const text = numbers.filter(Boolean).join('  ');
    const room = columns - 1 - text.length - 2;
    const name = this.name.length > room ? required(this.name.split('/').at(-1)) : this.name;
    return `${name.slice(0, Math.max(0, room))}  ${text}`.slice(0, columns - 1);
  }

  private begin(now: number): void {
    this.begunAt = now;
    this.printedAt = now;
    this.samples.push({ time: now, fetched: 0 });
    const rest = formatDecimalBytes(Math.max(0, this.total - this.done));
    this.printLine(`${this.name}: downloading ${rest}`);
  }

  private computeRate(now: number): number {
    const first = this.samples[0];
    if (!first || now <= first.time) return 0;
    return (1000 * (this.fetched - first.fetched)) / (now - first.time);
  }

  private draw(now: number): void {
    const { stream } = this;
    this.printedAt = now;
    this.samples.push({ time: now, fetched: this.fetched });
    while (this.samples.length > 2 && now - (this.samples[1]?.time ?? now) > WINDOW_MS) {
      this.samples.shift();
    }
    if (!stream) return;
    const columns = Math.min(COLUMNS, (stream.isTTY && stream.columns) || COLUMNS);
    if (!stream.isTTY) return void stream.write(`${this.formatLine(columns, now)}\n`);
    stream.write(`\r\x1b[2K${this.formatLine(columns, now)}`);
    this.isDrawn = true;
  }

  private clear(): void {
    if (this.isDrawn) this.stream?.write('\r\x1b[2K');
    this.isDrawn = false;
  }
}

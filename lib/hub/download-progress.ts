// Prints the progress of a download to stderr: a bar on a terminal, lines elsewhere.
import { required } from '../runtime/required.js';

const COLUMNS = 80;
/** Milliseconds between two drawings, and between two lines. */
const [DRAW_MS, LINE_MS] = [100, 10_000];
/** Milliseconds of the recent past that the rate is a mean of. */
const WINDOW_MS = 5000;

/** The stream of the progress. */
export interface ProgressStream {
  readonly isTTY?: boolean;
  readonly columns?: number;
  write(text: string): unknown;
}

/** Bytes as decimal units, which the hub and disks use. */
export function decimalBytes(bytes: number): string {
  const units = ['B', 'kB', 'MB', 'GB', 'TB'];
  let value = bytes;
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${unit === 0 ? value : value.toPrecision(3)} ${units[unit]}`;
}

/** "0:09", "12:34", "1:02:03". */
export function clock(seconds: number): string {
  const all = Math.round(seconds);
  const two = (value: number): string => `${value}`.padStart(2, '0');
  const [hours, minutes] = [Math.floor(all / 3600), Math.floor(all / 60) % 60];
  return hours > 0 ? `${hours}:${two(minutes)}:${two(all % 60)}` : `${minutes}:${two(all % 60)}`;
}

/** Counts bytes. Nothing is printed until a download begins. */
export class DownloadProgress {
  private total = 0;
  private done = 0;
  private fetched = 0;
  private begun: number | null = null;
  private drawn = false;
  private last = 0;
  private readonly samples: { time: number; fetched: number }[] = [];

  constructor(
    private readonly name: string,
    /** Null: nothing is printed. */
    private readonly stream: ProgressStream | null,
    private readonly now: () => number = () => performance.now(),
  ) {}

  /** Adds bytes to the total. */
  expect(bytes: number): void {
    this.total += bytes;
  }

  /** Counts bytes that are there without a download. */
  found(bytes: number): void {
    this.done += bytes;
  }

  /** Counts bytes that have arrived; a negative number if they are fetched again. */
  arrived(bytes: number): void {
    const now = this.now();
    if (this.begun === null) this.begin(now);
    this.done += bytes;
    this.fetched += Math.max(0, bytes);
    const isDue = now - this.last >= (this.stream?.isTTY ? DRAW_MS : LINE_MS);
    if (isDue) this.draw(now);
  }

  /** Prints a line of its own. */
  say(text: string): void {
    this.clear();
    this.stream?.write(`${text}\n`);
  }

  /** Ends the bar; prints the total time after a download. */
  finish(isWhole: boolean): void {
    if (this.begun === null) return;
    const seconds = Math.max(1e-3, (this.now() - this.begun) / 1000);
    const rate = decimalBytes(Math.round(this.fetched / seconds));
    const state = isWhole ? 'downloaded' : 'stopped after';
    this.say(
      `${this.name}: ${state} ${decimalBytes(this.fetched)} in ${clock(seconds)} (${rate}/s)`,
    );
    this.begun = null;
  }

  /** Returns a line of fewer than `columns` columns. */
  line(columns: number, now = this.now()): string {
    const { done, total } = this;
    const share = total > 0 ? Math.min(1, Math.max(0, done / total)) : 1;
    const rate = this.rate(now);
    const left = rate > 0 ? `${clock(Math.max(0, total - done) / rate)} left` : '';
    const numbers = [
      `${Math.floor(100 * share)}%`.padStart(4),
      `${decimalBytes(Math.max(0, done))} of ${decimalBytes(total)}`,
      `${decimalBytes(Math.round(rate))}/s`,
      left,
    ];
    const text = numbers.filter(Boolean).join('  ');
    const room = columns - 1 - text.length - 2;
    const name = this.name.length > room ? required(this.name.split('/').at(-1)) : this.name;
    return `${name.slice(0, Math.max(0, room))}  ${text}`.slice(0, columns - 1);
  }

  private begin(now: number): void {
    this.begun = now;
    this.last = now;
    this.samples.push({ time: now, fetched: 0 });
    const rest = decimalBytes(Math.max(0, this.total - this.done));
    this.say(`${this.name}: downloading ${rest}`);
  }

  private rate(now: number): number {
    const first = this.samples[0];
    if (!first || now <= first.time) return 0;
    return (1000 * (this.fetched - first.fetched)) / (now - first.time);
  }

  private draw(now: number): void {
    const { stream } = this;
    this.last = now;
    this.samples.push({ time: now, fetched: this.fetched });
    while (this.samples.length > 2 && now - (this.samples[1]?.time ?? now) > WINDOW_MS) {
      this.samples.shift();
    }
    if (!stream) return;
    const columns = Math.min(COLUMNS, (stream.isTTY && stream.columns) || COLUMNS);
    if (!stream.isTTY) return void stream.write(`${this.line(columns, now)}\n`);
    stream.write(`\r\x1b[2K${this.line(columns, now)}`);
    this.drawn = true;
  }

  private clear(): void {
    if (this.drawn) this.stream?.write('\r\x1b[2K');
    this.drawn = false;
  }
}

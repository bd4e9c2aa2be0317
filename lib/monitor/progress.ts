// Training progress on a console: a bar that redraws itself on a terminal, plain lines everywhere else.

export interface StepReport {
  /** Steps done, from 1. */
  step: number;
  loss: number;
  lr: number;
  tokensPerSecond: number;
  memoryBytes: number;
}

export interface ProgressOptions {
  /** Steps in all. */
  total: number;
  /** Default process.stdout. */
  stream?: NodeJS.WriteStream;
  /** Lines printed in all when the stream is no terminal. Default 20. */
  lines?: number;
}

const BAR_WIDTH = 24;

/** "[======------]  60/120  loss 5.321  lr 3.00e-3  9,812 tokens/s  412 MiB" */
export function progressLine(total: number, report: StepReport): string {
  const done = Math.round((BAR_WIDTH * report.step) / Math.max(1, total));
  const bar = '='.repeat(done).padEnd(BAR_WIDTH, '-');
  const step = `${report.step}`.padStart(`${total}`.length);
  const tokens = Math.round(report.tokensPerSecond).toLocaleString('en');
  const memory = Math.round(report.memoryBytes / 2 ** 20).toLocaleString('en');
  return (
    `[${bar}] ${step}/${total}  loss ${report.loss.toFixed(3)}  lr ${report.lr.toExponential(2)}  ` +
    `${tokens} tokens/s  ${memory} MiB`
  );
}

/** Without a terminal the first, the last and about `lines` steps in between get a line each. */
export class Progress {
  private readonly total: number;
  private readonly stream: NodeJS.WriteStream;
  private readonly every: number;
  private drawn = false;

  constructor({ total, stream = process.stdout, lines = 20 }: ProgressOptions) {
    this.total = total;
    this.stream = stream;
    this.every = Math.max(1, Math.ceil(total / lines));
  }

  update(report: StepReport): void {
    const line = progressLine(this.total, report);
    if (this.stream.isTTY) {
      this.stream.write(`\r\x1b[2K${line.slice(0, Math.max(1, this.stream.columns - 1))}`);
      this.drawn = true;
      return;
    }
    const due = report.step === 1 || report.step === this.total || report.step % this.every === 0;
    if (due) this.stream.write(`${line}\n`);
  }

  /** Leaves the last line standing. */
  finish(): void {
    if (this.drawn) this.stream.write('\n');
    this.drawn = false;
  }
}

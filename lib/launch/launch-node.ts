// `ds launch-node N`: node N of a job that came on standard input, started by a launcher elsewhere.
import type { Job } from './job.js';
import { readLines } from './lines.js';
import { type Exit, exitCode } from './member.js';
import { EventSink, encodeEvent } from './node-events.js';
import { Reaper } from './reaper.js';
import { startRanks } from './start-ranks.js';
import { INTERRUPTS, Supervisor } from './supervisor.js';

/**
 * Reads the job from the first line of input, and signals for the ranks from later lines. The end
 * of the input means that the starting launcher is gone: the ranks then end. Prints events. Returns
 * the exit code.
 */
export async function launchNode(nodeRank: number): Promise<number> {
  const orders = new Orders();
  const job = await orders.job;
  process.chdir(job.directory);
  const notice = (text: string) => {
    if (!job.quiet) console.error(`ds: ${text}`);
  };
  const write = (text: string) => void process.stdout.write(text);
  process.stdout.on('error', () => {});
  const reaper = new Reaper(job.grace, (reason) =>
    notice(`ranks may stay if the launcher is killed: ${reason}`),
  );
  try {
    const sink = new EventSink(write);
    const ranks = startRanks(job, nodeRank, { env: process.env, reaper, sink, notice });
    const report = (failed: Exit) => write(encodeEvent({ failed }));
    const supervisor = new Supervisor(ranks, job.grace, report);
    orders.obey((signal) => supervisor.interrupt(signal));
    const outcome = await supervisor.run();
    if (outcome.failure) return exitCode(outcome.failure);
    return outcome.interrupted ? exitCode({ code: null, signal: outcome.interrupted }) : 0;
  } finally {
    process.stdin.destroy();
    await reaper.close();
  }
}

/** Standard input: a job, then signals. */
class Orders {
  readonly job: Promise<Job>;
  private readonly early: NodeJS.Signals[] = [];
  private interrupt: (signal: NodeJS.Signals) => void = (signal) => this.early.push(signal);

  constructor() {
    this.job = new Promise((resolve, reject) => {
      let known = false;
      readLines(process.stdin, (line) => {
        if (known) return this.interrupt(line as NodeJS.Signals);
        known = true;
        resolve(JSON.parse(line) as Job);
      });
      process.stdin.on('end', () => {
        if (known) this.interrupt('SIGTERM');
        else reject(new Error('a job on standard input was expected: use ds --hostfile'));
      });
    });
    for (const signal of INTERRUPTS) {
      process.on(signal, () => this.interrupt(signal));
    }
  }

  /** Passes on all signals, including earlier ones. */
  obey(interrupt: (signal: NodeJS.Signals) => void): void {
    this.interrupt = interrupt;
    for (const signal of this.early.splice(0)) interrupt(signal);
  }
}

// `ds launch-node N`: runs node N of a job that a launcher on another node sends to standard input.
import type { Job } from './job.js';
import { readLines } from './lines.js';
import { type Exit, exitCode } from './member.js';
import { EventSink, encodeEvent } from './node-events.js';
import { Reaper } from './reaper.js';
import { startRanks } from './start-ranks.js';
import { INTERRUPTS, Supervisor } from './supervisor.js';

/**
 * Runs the ranks of the node. Reads the job from the first line of input, and signals for the ranks
 * from later lines. The end of the input means that the launcher has ended, so the ranks end too.
 * Prints events. Returns the exit code.
 */
export async function launchNode(nodeRank: number): Promise<number> {
  const input = new LauncherInput();
  const job = await input.job;
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
    input.forwardSignals((signal) => supervisor.interrupt(signal));
    const outcome = await supervisor.run();
    if (outcome.failure) return exitCode(outcome.failure);
    return outcome.interrupted ? exitCode({ code: null, signal: outcome.interrupted }) : 0;
  } finally {
    process.stdin.destroy();
    await reaper.close();
  }
}

/** The launcher's input: a job on the first line, then signals. */
class LauncherInput {
  readonly job: Promise<Job>;
  private readonly earlySignals: NodeJS.Signals[] = [];
  private interrupt: (signal: NodeJS.Signals) => void = (signal) => this.earlySignals.push(signal);

  constructor() {
    this.job = new Promise((resolve, reject) => {
      let isJobRead = false;
      readLines(process.stdin, (line) => {
        if (isJobRead) return this.interrupt(line as NodeJS.Signals);
        isJobRead = true;
        resolve(JSON.parse(line) as Job);
      });
      process.stdin.on('end', () => {
        if (isJobRead) this.interrupt('SIGTERM');
        else reject(new Error('a job on standard input was expected: use ds --hostfile'));
      });
    });
    for (const signal of INTERRUPTS) {
      process.on(signal, () => this.interrupt(signal));
    }
  }

  /** Forwards all signals, including earlier signals. */
  forwardSignals(interrupt: (signal: NodeJS.Signals) => void): void {
    this.interrupt = interrupt;
    for (const signal of this.earlySignals.splice(0)) interrupt(signal);
  }
}

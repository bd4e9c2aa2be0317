// `ds [options] script.js`: starts the ranks of a job, passes their output on, and ends them all
// together.

import { rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { errorMessage } from '../runtime/system-error.js';

import { refuse } from './argument-error.js';
import type { LaunchOptions } from './launch-options.js';
import type { StreamName, WriteLine } from './lines.js';
import { type LaunchJob, makeJob } from './make-job.js';
import { describeExit, type Exit, exitCode, type JobProcess } from './member.js';
import { MergedOutput } from './merged-output.js';
import { worldSizeOf } from './rank-environment.js';
import { Reaper } from './reaper.js';
import type { Program } from './script.js';
import { SshNode } from './ssh-node.js';
import { startRanks } from './start-ranks.js';
import { INTERRUPTS, type Outcome, Supervisor } from './supervisor.js';

/** Destinations of a job's output. */
export interface JobOutput {
  write: WriteLine;
  notice: (text: string) => void;
  /** Whether a lone rank writes to this process's own output, which may be a terminal. */
  isTerminal: boolean;
}

/**
 * Runs the job and returns the launcher's exit code: the code of the first failed rank, 128 + the
 * number of a signal to that rank or to this process, or 0. Throws DS_ARGUMENT before a rank
 * starts.
 */
export async function launch(options: LaunchOptions, program: Program): Promise<number> {
  const output = { write, notice: noticeOf(options), isTerminal: true };
  const plan = await plannedJob(options, program, output.notice);
  outliveReaders();
  return withPidFile(options, async () => {
    const outcome = await runJob(plan, output);
    if (outcome.failure) return exitCode(outcome.failure);
    return outcome.interrupted ? exitCode({ code: null, signal: outcome.interrupted }) : 0;
  });
}

/** Runs `body` while the file of --save_pid is there. Throws DS_ARGUMENT where it cannot be. */
export async function withPidFile(
  { save_pid: isWanted }: LaunchOptions,
  body: () => Promise<number>,
): Promise<number> {
  const file = isWanted ? savePid() : null;
  try {
    return await body();
  } finally {
    if (file) rmSync(file, { force: true });
  }
}

/** Ignores write errors of the output: the end of its reader is no failure of this process. */
export function outliveReaders(): void {
  for (const stream of [process.stdout, process.stderr]) stream.on('error', () => {});
}

/** Prints notices for the user, unless the options are quiet. */
export function noticeOf({ quiet }: LaunchOptions): (text: string) => void {
  return (text) => {
    if (!quiet) console.error(`ds: ${text}`);
  };
}

/** Calls makeJob() with the hardware of this machine. */
export function plannedJob(
  options: LaunchOptions,
  program: Program,
  notice: (text: string) => void,
): Promise<LaunchJob> {
  const probe = async () => (await import('../runtime/device.js')).probeGpus();
  return makeJob(options, program, { env: process.env, probe, notice });
}

/** Runs `plan` to its end; signals to this process are passed on to it. */
export async function runJob(plan: LaunchJob, output: JobOutput): Promise<Outcome> {
  const { grace } = plan.job;
  const reaper = new Reaper(grace, (reason) =>
    output.notice(`ranks may stay if the launcher is killed: ${reason}`),
  );
  const sink = new MergedOutput(output.write, { worldSize: ranksSeen(plan) });
  const cleanups: (() => void)[] = [];
  try {
    const members = startMembers(plan, sink, reaper, output);
    const supervisor = new Supervisor(members, grace, (exit) => {
      sink.end();
      for (const line of report(exit, ranksSeen(plan))) output.write('err', line);
    });
    const interrupt = (signal: NodeJS.Signals) => supervisor.interrupt(signal);
    const stop = stopOnce(interrupt, output);
    for (const signal of INTERRUPTS) {
      process.on(signal, interrupt);
      cleanups.push(() => process.off(signal, interrupt));
    }
    // The reader of the output is gone, or its disk is full.
    for (const stream of [process.stdout, process.stderr]) {
      stream.on('error', stop);
      cleanups.push(() => stream.off('error', stop));
    }
    return await supervisor.run();
  } finally {
    sink.end();
    await reaper.close();
    for (const clean of cleanups) clean();
  }
}

/**
 * Ranks here, and the launchers of other nodes. A lone rank writes to this process's own output.
 */
function startMembers(
  plan: LaunchJob,
  sink: MergedOutput,
  reaper: Reaper,
  { write, notice, isTerminal }: JobOutput,
): JobProcess[] {
  const { job, here, remote, ssh } = plan;
  const isAlone = ranksSeen(plan) === 1 && here.length === 1 && job.logDirectory === null;
  const ownsTerminal = isTerminal && isAlone;
  const around = { env: process.env, reaper, sink: ownsTerminal ? null : sink, notice };
  return [
    ...here.flatMap((nodeRank) => startRanks(job, nodeRank, around)),
    ...remote.map((nodeRank) => new SshNode({ job, nodeRank, ssh }, sink, write, reaper)),
  ];
}

/** Returns the number of ranks that print through this process. */
function ranksSeen({ job, here, remote }: LaunchJob): number {
  const nodes = [...here, ...remote].flatMap((rank) => job.nodes[rank] ?? []);
  return worldSizeOf({ ...job, nodes });
}

/**
 * Interrupts the job once for any number of failed writes. It names the cause on the other stream,
 * unless the user closed the pipe.
 */
function stopOnce(
  interrupt: (signal: NodeJS.Signals) => void,
  { write }: JobOutput,
): (error: NodeJS.ErrnoException) => void {
  let stopped = false;
  return ({ code, message }) => {
    if (stopped) return;
    stopped = true;
    if (code !== 'EPIPE')
      write('err', `ds: the output cannot be written, the job ends: ${message}`);
    interrupt('SIGTERM');
  };
}

function write(stream: StreamName, text: string): void {
  const to = stream === 'out' ? process.stdout : process.stderr;
  to.write(`${text}\n`);
}

function report(exit: Exit, ranks: number): string[] {
  const head = `ds: ${exit.who} failed${ranks > 1 ? ' first' : ''}: ${describeExit(exit)}.`;
  if (exit.lastLines.length === 0) return [head];
  return [
    `${head} Its last lines on standard error:`,
    ...exit.lastLines.map((line) => `  ${line}`),
  ];
}

/** <temporary folder>/<pid>.ds, as DeepSpeed names it; never over a file that exists. */
function savePid(): string {
  const file = join(tmpdir(), `${process.pid}.ds`);
  try {
    writeFileSync(file, `${process.pid}\n`, { flag: 'wx' });
  } catch (error) {
    refuse('--save_pid', 'to create a file', `${file}: ${errorMessage(error)}`);
  }
  return file;
}

// `ds [options] script.js`: starts the ranks of a job, forwards their output, and ends them all
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
import { onNpmEnd } from './npm-parent.js';
import { countRanks } from './rank-environment.js';
import { Reaper } from './reaper.js';
import type { Program } from './script.js';
import { SshNode } from './ssh-node.js';
import { startRanks } from './start-ranks.js';
import { INTERRUPTS, type Outcome, Supervisor } from './supervisor.js';

/** Destinations of a job's output. */
interface JobOutput {
  write: WriteLine;
  notice: (text: string) => void;
  /** Whether a single rank writes to this process's own output, which may be a terminal. */
  isTerminal: boolean;
}

/**
 * Runs the job and returns the launcher's exit code: the code of the first failed rank, 128 + the
 * number of a signal to that rank or to this process, or 0. Throws DS_ARGUMENT before a rank
 * starts.
 */
export async function launch(options: LaunchOptions, program: Program): Promise<number> {
  const output = { write: writeOutput, notice: createNotice(options), isTerminal: true };
  const plan = await planJob(options, program, output.notice);
  ignoreOutputErrors();
  return withPidFile(options, async () => {
    const outcome = await runJob(plan, output);
    if (outcome.failure) return exitCode(outcome.failure);
    return outcome.interrupted ? exitCode({ code: null, signal: outcome.interrupted }) : 0;
  });
}

/**
 * Runs `body` while the file of --save_pid exists. Throws DS_ARGUMENT if the file cannot be
 * created.
 */
export async function withPidFile(
  { save_pid: savesPid }: LaunchOptions,
  body: () => Promise<number>,
): Promise<number> {
  const file = savesPid ? writePidFile() : null;
  try {
    return await body();
  } finally {
    if (file) rmSync(file, { force: true });
  }
}

/** Ignores write errors of the output, so the end of its reader is not an error of this process. */
export function ignoreOutputErrors(): void {
  for (const stream of [process.stdout, process.stderr]) stream.on('error', () => {});
}

/** Returns a function that prints notices for the user, unless the options are quiet. */
export function createNotice({ quiet }: LaunchOptions): (text: string) => void {
  return (text) => {
    if (!quiet) console.error(`ds: ${text}`);
  };
}

/** Calls makeJob() with the hardware of this machine. */
export function planJob(
  options: LaunchOptions,
  program: Program,
  notice: (text: string) => void,
): Promise<LaunchJob> {
  const probe = async () => (await import('../runtime/device.js')).probeGpus();
  return makeJob(options, program, { env: process.env, probe, notice });
}

/** Runs `plan` to its end and forwards signals to its members. */
export async function runJob(plan: LaunchJob, output: JobOutput): Promise<Outcome> {
  const { grace } = plan.job;
  const reaper = new Reaper(grace, (reason) =>
    output.notice(`ranks may stay if the launcher is killed: ${reason}`),
  );
  const sink = new MergedOutput(output.write, { worldSize: countPrintingRanks(plan) });
  const cleanups: (() => void)[] = [];
  try {
    const members = startMembers(plan, sink, reaper, output);
    const supervisor = new Supervisor(members, grace, (exit) => {
      sink.end();
      for (const line of formatFailure(exit, countPrintingRanks(plan))) output.write('err', line);
    });
    const interrupt = (signal: NodeJS.Signals) => supervisor.interrupt(signal);
    const stop = createStopOnce(interrupt, output);
    cleanups.push(onNpmEnd(() => supervisor.interruptOnce('SIGTERM')));
    for (const signal of INTERRUPTS) {
      process.on(signal, interrupt);
      cleanups.push(() => process.off(signal, interrupt));
    }
    // The reader of the output has ended, or its disk is full.
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
 * Starts the ranks of this node and the launchers of other nodes. A single rank writes to this
 * process's own output.
 */
function startMembers(
  plan: LaunchJob,
  sink: MergedOutput,
  reaper: Reaper,
  { write, notice, isTerminal }: JobOutput,
): JobProcess[] {
  const { job, here, remote, ssh } = plan;
  const isAlone = countPrintingRanks(plan) === 1 && here.length === 1 && job.logDirectory === null;
  const ownsTerminal = isTerminal && isAlone;
  const context = { env: process.env, reaper, sink: ownsTerminal ? null : sink, notice };
  return [
    ...here.flatMap((nodeRank) => startRanks(job, nodeRank, context)),
    ...remote.map((nodeRank) => new SshNode({ job, nodeRank, ssh }, sink, write, reaper)),
  ];
}

/** Returns the number of ranks that print through this process. */
function countPrintingRanks({ job, here, remote }: LaunchJob): number {
  const nodes = [...here, ...remote].flatMap((rank) => job.nodes[rank] ?? []);
  return countRanks({ ...job, nodes });
}

/**
 * Returns an error handler that interrupts the job at the first failed write. It reports the cause
 * on the other stream, unless the user closed the pipe.
 */
function createStopOnce(
  interrupt: (signal: NodeJS.Signals) => void,
  { write }: JobOutput,
): (error: NodeJS.ErrnoException) => void {
  let isStopped = false;
  return ({ code, message }) => {
    if (isStopped) return;
    isStopped = true;
    if (code !== 'EPIPE')
      write('err', `ds: the output cannot be written, the job ends: ${message}`);
    interrupt('SIGTERM');
  };
}

function writeOutput(stream: StreamName, text: string): void {
  const to = stream === 'out' ? process.stdout : process.stderr;
  to.write(`${text}\n`);
}

function formatFailure(exit: Exit, ranks: number): string[] {
  const head = `ds: ${exit.who} failed${ranks > 1 ? ' first' : ''}: ${describeExit(exit)}.`;
  if (exit.lastLines.length === 0) return [head];
  return [
    `${head} Its last lines on standard error:`,
    ...exit.lastLines.map((line) => `  ${line}`),
  ];
}

/**
 * Writes the file <temporary folder>/<pid>.ds, as DeepSpeed does. Throws DS_ARGUMENT if it exists.
 */
function writePidFile(): string {
  const file = join(tmpdir(), `${process.pid}.ds`);
  try {
    writeFileSync(file, `${process.pid}\n`, { flag: 'wx' });
  } catch (error) {
    refuse('--save_pid', 'to create a file', `${file}: ${errorMessage(error)}`);
  }
  return file;
}

// `ds [options] script.js`: starts the ranks of a job, passes their output on, and ends them all
// together.
import { rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { refuse } from './argument-error.js';
import type { LaunchOptions } from './launch-options.js';
import type { StreamName } from './lines.js';
import { type LaunchJob, makeJob } from './make-job.js';
import { describeExit, type Exit, exitCode, type Member } from './member.js';
import { MergedOutput } from './merged-output.js';
import { worldSizeOf } from './rank-environment.js';
import { Reaper } from './reaper.js';
import type { Program } from './script.js';
import { SshNode } from './ssh-node.js';
import { startRanks } from './start-ranks.js';
import { Supervisor } from './supervisor.js';

/**
 * Runs the job and returns the launcher's exit code: that of the rank that failed first, 128 + the
 * number of a signal (the rank's, or this process's own), or 0. Throws DS_ARGUMENT for what it
 * refuses to start.
 */
export async function launch(options: LaunchOptions, program: Program): Promise<number> {
  const notice = (text: string) => {
    if (!options.quiet) console.error(`ds: ${text}`);
  };
  const { env } = process;
  const probe = async () => (await import('../runtime/device.js')).probeGpus();
  const plan = await makeJob(options, program, { env, probe, notice });
  const pidFile = options.save_pid ? savePid() : null;
  const { grace } = plan.job;
  const reaper = new Reaper(grace, (reason) => notice(`no reaper: ${reason}`));
  const sink = new MergedOutput(write, { worldSize: ranksSeen(plan) });
  try {
    const members = startMembers(plan, sink, reaper, notice);
    const supervisor = new Supervisor(members, grace, (exit) => {
      sink.end();
      for (const line of report(exit, ranksSeen(plan))) console.error(line);
    });
    const interrupt = (signal: NodeJS.Signals) => supervisor.interrupt(signal);
    for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, interrupt);
    // Nobody reads the output any more.
    const stop = stopOnce(interrupt);
    for (const stream of [process.stdout, process.stderr]) stream.on('error', stop);
    const outcome = await supervisor.run();
    if (outcome.failure) return exitCode(outcome.failure);
    return outcome.interrupted ? exitCode({ code: null, signal: outcome.interrupted }) : 0;
  } finally {
    sink.end();
    await reaper.close();
    if (pidFile) rmSync(pidFile, { force: true });
  }
}

/**
 * Ranks here, and the launchers of other nodes. A lone rank writes to this process's own output.
 */
function startMembers(
  plan: LaunchJob,
  sink: MergedOutput,
  reaper: Reaper,
  notice: (text: string) => void,
): Member[] {
  const { job, here, remote, ssh } = plan;
  const alone = ranksSeen(plan) === 1 && here.length === 1 && job.logDirectory === null;
  const around = { env: process.env, reaper, sink: alone ? null : sink, notice };
  return [
    ...here.flatMap((nodeRank) => startRanks(job, nodeRank, around)),
    ...remote.map((nodeRank) => new SshNode({ job, nodeRank, ssh }, sink, write, reaper)),
  ];
}

/** Ranks whose output passes through this process. */
function ranksSeen({ job, here, remote }: LaunchJob): number {
  const nodes = [...here, ...remote].flatMap((rank) => job.nodes[rank] ?? []);
  return worldSizeOf({ ...job, nodes });
}

/** Asks to end once, however many lines cannot be written. */
function stopOnce(interrupt: (signal: NodeJS.Signals) => void): () => void {
  let stopped = false;
  return () => {
    if (!stopped) interrupt('SIGTERM');
    stopped = true;
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
    refuse('--save_pid', 'to create a file', `${file}: ${(error as Error).message}`);
  }
  return file;
}

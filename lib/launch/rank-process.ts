// Runs one rank: a Node process with the user's script. Reads its output line by line.

import { createWriteStream, type WriteStream } from 'node:fs';
import { join } from 'node:path';
import { makeFolderNow } from '../runtime/make-folder.js';
import { onDisk } from '../runtime/on-disk.js';
import { required } from '../runtime/required.js';
import { ChildGroup } from './child-group.js';
import type { Binding } from './core-binding.js';
import { type LineSink, readLines } from './lines.js';
import type { Exit, JobProcess } from './member.js';
import type { Reaper } from './reaper.js';

interface RankCommand {
  rank: number;
  localRank: number;
  /** Arguments of `node`. */
  args: readonly string[];
  environment: Record<string, string | undefined>;
  directory: string;
  binding: Binding | null;
  /** File that also receives the output of the rank, or null. */
  logFile: string | null;
  /** Null: the rank writes to this process's own output, which may be a terminal. */
  sink: LineSink | null;
  /** Name of the rank in messages. */
  who: string;
}

/** Maximum number of lines of standard error that a failure shows. */
const LAST_LINES = 20;

export class RankProcess implements JobProcess {
  readonly exited: Promise<Exit>;
  readonly failing: Promise<Exit>;
  private readonly group: ChildGroup;
  private readonly lastLines: string[] = [];

  constructor(command: RankCommand, reaper: Reaper) {
    const { args, environment, directory, sink, who } = command;
    const [file, ...rest] = [...(command.binding?.prefix ?? []), process.execPath, ...args];
    const output = sink ? 'pipe' : 'inherit';
    this.group = new ChildGroup(
      required(file),
      rest,
      { cwd: directory, env: environment, stdio: ['ignore', output, output] },
      reaper,
    );
    const log = command.logFile === null ? null : openLog(command.logFile, sink, command.rank);
    if (sink) this.readOutput(command.rank, sink, log);
    const { leaderExited, exited } = this.group;
    const { lastLines } = this;
    const exit = leaderExited.then(({ code, signal, error }) => {
      if (error !== null) lastLines.push(`It could not be started: ${error}`);
      return { code, signal, who, lastLines };
    });
    this.failing = new Promise((resolve) => {
      void exit.then((result) => result.code !== 0 && resolve(result));
    });
    this.exited = exited.then(() => {
      log?.end();
      return exit;
    });
  }

  get pid(): number | undefined {
    return this.group.child.pid;
  }

  stop(signal: NodeJS.Signals): void {
    this.group.signal(signal);
  }

  kill(): void {
    this.group.signal('SIGKILL');
  }

  private readOutput(rank: number, sink: LineSink, log: WriteStream | null): void {
    const { stdout, stderr } = this.group.child;
    if (!stdout || !stderr) return;
    readLines(stdout, (line) => {
      log?.write(`${line}\n`);
      sink.line(rank, 'out', line);
    });
    readLines(stderr, (line) => {
      log?.write(`${line}\n`);
      sink.line(rank, 'err', line);
      this.lastLines.push(line);
      if (this.lastLines.length > LAST_LINES) this.lastLines.shift();
    });
  }
}

/** Opens a log file. A write error appears once, in the rank's output. */
function openLog(file: string, sink: LineSink | null, rank: number): WriteStream {
  const log = createWriteStream(file, { mode: 0o644 });
  log.on('error', (error) => sink?.line(rank, 'err', `ds: ${file}: ${error.message}`));
  return log;
}

/**
 * Creates `directory` and returns the path of the rank's log in it:
 * DIRECTORY/20260131-235959_rank0.log, in UTC. Throws DS_IO if it cannot.
 */
export function createLogFolder(directory: string, rank: number, started: Date): string {
  const op = `--enable_each_rank_log ${directory}`;
  onDisk({ op, expected: 'a folder that can be made' }, () => makeFolderNow(directory));
  const stamp = started.toISOString().slice(0, 19).replace(/[-:]/g, '').replace('T', '-');
  return join(directory, `${stamp}_rank${rank}.log`);
}

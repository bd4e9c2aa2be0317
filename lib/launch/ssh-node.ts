// Runs the ranks of another node: starts `ds launch-node` by ssh and sends the job to its input.

import { required } from '../runtime/required.js';
import { ChildGroup } from './child-group.js';
import type { Job } from './job.js';
import { type LineSink, readLines, type WriteLine } from './lines.js';
import type { SshOptions } from './make-job.js';
import type { Exit, JobProcess } from './member.js';
import { decodeEvent } from './node-events.js';
import type { Reaper } from './reaper.js';
import { quote } from './shell-words.js';

/** Maximum number of lines of ssh's standard error that a failure shows. */
const LAST_LINES = 5;

/**
 * Returns the arguments of ssh. The user's options come first, because ssh uses the first of
 * repeated options. With ours, ssh asks for no password, allocates no terminal, and reports a lost
 * connection within a minute.
 */
function createSshArguments({ port, args }: SshOptions, host: string, command: string): string[] {
  const options = ['BatchMode=yes', 'ConnectTimeout=30', 'ServerAliveInterval=15'];
  return [
    '-T',
    ...(port === null ? [] : ['-p', String(port)]),
    ...args,
    ...options.flatMap((option) => ['-o', option]),
    '--',
    host.replace(/\[|\]/g, ''),
    command,
  ];
}

/**
 * Returns the command for the remote POSIX shell. Node and the package must have the same paths
 * there.
 */
function createNodeCommand(directory: string, nodeRank: number): string {
  const cli = required(process.argv[1]);
  const words = [process.execPath, ...process.execArgv, cli, 'launch-node', String(nodeRank)];
  return `cd ${quote(directory)} && exec ${words.map(quote).join(' ')}`;
}

export class SshNode implements JobProcess {
  readonly exited: Promise<Exit>;
  readonly failing: Promise<Exit>;
  private readonly group: ChildGroup;
  private readonly lastLines: string[] = [];
  private rankFailure: Exit | null = null;
  private resolveFailing: (exit: Exit) => void = () => {};

  /** `write` receives output that is not from ranks. */
  constructor(
    private readonly plan: { job: Job; nodeRank: number; ssh: SshOptions },
    private readonly sink: LineSink,
    private readonly write: WriteLine,
    reaper: Reaper,
  ) {
    const { job, nodeRank, ssh } = plan;
    const args = createSshArguments(ssh, this.host, createNodeCommand(job.directory, nodeRank));
    this.group = new ChildGroup('ssh', args, { stdio: 'pipe' }, reaper);
    const { stdin, stdout, stderr } = this.group.child;
    stdin?.on('error', () => {});
    stdin?.write(`${JSON.stringify(job)}\n`);
    if (stdout) readLines(stdout, (line) => this.readEvent(line));
    if (stderr) readLines(stderr, (line) => this.readErrorLine(line));
    const { lastLines } = this;
    const sshExit = this.group.exited.then(({ code, signal, error }) => {
      if (error !== null) lastLines.push(error);
      return { code, signal, who: `ssh to ${this.host}`, lastLines };
    });
    this.failing = new Promise((resolve) => {
      this.resolveFailing = resolve;
      void sshExit.then((exit) => exit.code !== 0 && resolve(exit));
    });
    this.exited = sshExit.then((exit) => this.rankFailure ?? exit);
  }

  private get host(): string {
    return required(this.plan.job.nodes[this.plan.nodeRank]?.host);
  }

  /** Sends a stop request. The node ends its ranks itself, within its grace period. */
  stop(signal: NodeJS.Signals): void {
    this.group.child.stdin?.write(`${signal}\n`);
  }

  /** Ends ssh. The node then reads the end of its input and kills the remaining ranks. */
  kill(): void {
    this.group.signal('SIGKILL');
  }

  private readEvent(line: string): void {
    const event = decodeEvent(line);
    if (!event) this.write('out', `[${this.host}] ${line}`);
    else if ('line' in event) this.sink.line(...event.line);
    else {
      this.rankFailure = event.failed;
      this.resolveFailing(event.failed);
    }
  }

  private readErrorLine(line: string): void {
    this.write('err', `[${this.host}] ${line}`);
    this.lastLines.push(line);
    if (this.lastLines.length > LAST_LINES) this.lastLines.shift();
  }
}

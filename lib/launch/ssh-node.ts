// The ranks of another node: `ds launch-node` there, reached by ssh, which gets the job on its
// input.

import { required } from '../runtime/required.js';
import { ChildGroup } from './child-group.js';
import type { Job } from './job.js';
import { type LineSink, readLines, type WriteLine } from './lines.js';
import type { SshOptions } from './make-job.js';
import type { Exit, JobProcess } from './member.js';
import { decodeEvent } from './node-events.js';
import type { Reaper } from './reaper.js';
import { quote } from './shell-words.js';

/** Lines of ssh's standard error that a failure shows. */
const LAST_LINES = 5;

/**
 * The arguments of ssh. For a repeated option, ssh takes the first. ssh asks for no password and
 * makes no terminal, and it reports a lost link within a minute.
 */
function sshArguments({ port, args }: SshOptions, host: string, command: string): string[] {
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
 * The command for a POSIX shell there; the same Node and the same package must lie at the same
 * paths.
 */
function nodeCommand(directory: string, nodeRank: number): string {
  const cli = required(process.argv[1]);
  const words = [process.execPath, ...process.execArgv, cli, 'launch-node', String(nodeRank)];
  return `cd ${quote(directory)} && exec ${words.map(quote).join(' ')}`;
}

export class SshNode implements JobProcess {
  readonly exited: Promise<Exit>;
  readonly failing: Promise<Exit>;
  private readonly group: ChildGroup;
  private readonly lastLines: string[] = [];
  private failed: Exit | null = null;
  private fail: (exit: Exit) => void = () => {};

  /** `write` receives output that does not come from ranks. */
  constructor(
    private readonly plan: { job: Job; nodeRank: number; ssh: SshOptions },
    private readonly sink: LineSink,
    private readonly write: WriteLine,
    reaper: Reaper,
  ) {
    const { job, nodeRank, ssh } = plan;
    const args = sshArguments(ssh, this.host, nodeCommand(job.directory, nodeRank));
    this.group = new ChildGroup('ssh', args, { stdio: 'pipe' }, reaper);
    const { stdin, stdout, stderr } = this.group.child;
    stdin?.on('error', () => {});
    stdin?.write(`${JSON.stringify(job)}\n`);
    if (stdout) readLines(stdout, (line) => this.take(line));
    if (stderr) readLines(stderr, (line) => this.complain(line));
    const { lastLines } = this;
    const own = this.group.exited.then(({ code, signal, error }) => {
      if (error !== null) lastLines.push(error);
      return { code, signal, who: `ssh to ${this.host}`, lastLines };
    });
    this.failing = new Promise((resolve) => {
      this.fail = resolve;
      void own.then((exit) => exit.code !== 0 && resolve(exit));
    });
    this.exited = own.then((exit) => this.failed ?? exit);
  }

  private get host(): string {
    return required(this.plan.job.nodes[this.plan.nodeRank]?.host);
  }

  /** The node ends its ranks itself, within its own grace. */
  stop(signal: NodeJS.Signals): void {
    this.group.child.stdin?.write(`${signal}\n`);
  }

  /** Without ssh, the node sees the end of its input and kills the remaining ranks. */
  kill(): void {
    this.group.signal('SIGKILL');
  }

  private take(line: string): void {
    const event = decodeEvent(line);
    if (!event) this.write('out', `[${this.host}] ${line}`);
    else if ('line' in event) this.sink.line(...event.line);
    else {
      this.failed = event.failed;
      this.fail(event.failed);
    }
  }

  private complain(line: string): void {
    this.write('err', `[${this.host}] ${line}`);
    this.lastLines.push(line);
    if (this.lastLines.length > LAST_LINES) this.lastLines.shift();
  }
}

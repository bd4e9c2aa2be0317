// `ds --autotuning tune|run script.js`: searches the fastest configuration by jobs of the script,
// and with `run` starts it with the best one.
import { autotune, type Jobs } from '../autotuning/index.js';
import type { DsError } from '../errors.js';
import { refuse } from './argument-error.js';
import { JobLogs } from './job-logs.js';
import { launch, noticeOf, outliveReaders, plannedJob, runJob, withPidFile } from './launch.js';
import type { LaunchOptions } from './launch-options.js';
import type { LaunchJob } from './make-job.js';
import { exitCode } from './member.js';
import type { Program } from './script.js';
import { quote } from './shell-words.js';
import { INTERRUPTS } from './supervisor.js';

/** As a shell reports a program that Ctrl-C has ended. */
const INTERRUPTED = 130;

/** A program of this package. */
export interface PackagedProgram {
  /** The name of the command as a user types it. */
  name: string;
  /** Arguments of the program that hold keys of a configuration. */
  holding: Readonly<Record<string, string>>;
}

/**
 * Returns 0 if a configuration was found; with "run", the exit code of the training with it.
 * Returns 1 if no configuration could be measured. Throws DS_ARGUMENT for a job that cannot be
 * searched, DS_CONFIG, DS_IO.
 */
export async function autotuneCommand(
  options: LaunchOptions,
  program: Program,
  known: PackagedProgram | null = null,
): Promise<number> {
  const { autotuning: mode, save_pid, ...own } = options;
  if (own.node_rank !== undefined) {
    const hint = 'Start ds once, with --hostfile.';
    refuse('--autotuning', 'one launcher, which starts all ranks', '--node_rank', hint);
  }
  const job = await plannedJob(own, program, noticeOf(own));
  if (!job.here.includes(0)) {
    const hint = 'Start ds on that host: rank 0 writes its measurements to a file there.';
    refuse('--autotuning', 'a start on the first host of the hostfile', 'another host', hint);
  }
  outliveReaders();
  return withPidFile({ ...own, save_pid }, async () => {
    const stopRequest = new AskedToEnd();
    const jobs = jobsOf(own, program, job, {
      name: known?.name ?? program.name,
      asked: stopRequest,
    });
    const request = { args: program.args, known: known?.holding ?? {}, jobs };
    const say = (line: string) => void process.stdout.write(`${line}\n`);
    const found = await autotune({ ...request, say }).finally(() => stopRequest.dispose());
    if (found.isInterrupted || stopRequest.isDue) return INTERRUPTED;
    if (found.file === null) return 1;
    return mode === 'run' ? launch(own, { ...program, args: found.args }) : 0;
  });
}

/** Notes signals, also between two jobs, and the end of the output's reader. */
class AskedToEnd {
  isDue = false;
  private readonly hear = (): void => {
    this.isDue = true;
  };

  constructor() {
    for (const signal of INTERRUPTS) process.on(signal, this.hear);
    process.stdout.on('error', this.hear);
  }

  dispose(): void {
    for (const signal of INTERRUPTS) process.off(signal, this.hear);
    process.stdout.off('error', this.hear);
  }
}

function jobsOf(
  options: LaunchOptions,
  program: Program,
  { job, remote }: LaunchJob,
  { name, asked }: { name: string; asked: AskedToEnd },
): Jobs {
  let isReported = false;
  const reportOnce = ({ code, message }: DsError): void => {
    if (!isReported) process.stderr.write(`ds: ${code} | ${message}\n`);
    isReported = true;
  };
  return {
    slots: Math.max(...job.nodes.map(({ slots }) => slots.length)),
    nodes: job.nodes.length,
    isRemote: remote.length > 0,
    command: (args) => ['ds', ...wordsOf(options), name, ...args].map(quote).join(' '),
    async run(args, files) {
      const logs = new JobLogs(files, reportOnce);
      const { line: write } = logs;
      const notice = (text: string): void => write('err', `ds: ${text}`);
      try {
        const plan = await plannedJob(options, { ...program, args }, notice);
        if (asked.isDue) return { code: INTERRUPTED, isInterrupted: true };
        const { failure } = await runJob(plan, { write, notice, isTerminal: false });
        return { code: failure ? exitCode(failure) : 0, isInterrupted: asked.isDue };
      } finally {
        await logs.close();
      }
    },
  };
}

/** Returns the options as a user types them to start one experiment. */
function wordsOf(options: LaunchOptions): string[] {
  return Object.entries(options).flatMap(([name, value]) => {
    if (name === 'bind_cores_to_rank') return value ? [] : ['--no-bind_cores_to_rank'];
    if (value === true) return [`--${name}`];
    const isStandard =
      (name === 'launcher' && value === 'ssh') || (name === 'grace_period' && value === 30);
    return isStandard || value === false || value === undefined ? [] : [`--${name}`, String(value)];
  });
}

// `ds --autotuning tune|run script.js`: searches for the fastest configuration with jobs of the
// script. `run` then starts the script with it.
import { autotune, type Jobs } from '../autotuning/index.js';
import type { DsError } from '../errors.js';
import { refuse } from './argument-error.js';
import { JobLogs } from './job-logs.js';
import {
  createNotice,
  ignoreOutputErrors,
  launch,
  planJob,
  runJob,
  withPidFile,
} from './launch.js';
import type { LaunchOptions } from './launch-options.js';
import type { LaunchJob } from './make-job.js';
import { exitCode } from './member.js';
import type { Program } from './script.js';
import { quote } from './shell-words.js';
import { INTERRUPTS } from './supervisor.js';

/** The exit code that a shell reports for a program ended by Ctrl-C. */
const INTERRUPTED = 130;

/** A training program of this package. */
export interface PackagedProgram {
  /** Name of the command as the user types it. */
  name: string;
  /** Arguments of the program that set keys of the configuration, by key. */
  configArguments: Readonly<Record<string, string>>;
}

/**
 * Runs the search. Returns 0 if a configuration was found; with "run", the exit code of the
 * training with it. Returns 1 if no configuration could be measured. Throws DS_ARGUMENT for a job
 * that cannot be searched, DS_CONFIG, DS_IO.
 */
export async function autotuneCommand(
  options: LaunchOptions,
  program: Program,
  packaged: PackagedProgram | null = null,
): Promise<number> {
  const { autotuning: mode, save_pid, ...launchOptions } = options;
  if (launchOptions.node_rank !== undefined) {
    const hint = 'Start ds once, with --hostfile.';
    refuse('--autotuning', 'one launcher, which starts all ranks', '--node_rank', hint);
  }
  const job = await planJob(launchOptions, program, createNotice(launchOptions));
  if (!job.here.includes(0)) {
    const hint = 'Start ds on that host: rank 0 writes its measurements to a file there.';
    refuse('--autotuning', 'a start on the first host of the hostfile', 'another host', hint);
  }
  ignoreOutputErrors();
  return withPidFile({ ...launchOptions, save_pid }, async () => {
    const stopRequest = new StopRequest();
    const jobs = createJobs(launchOptions, program, job, {
      name: packaged?.name ?? program.name,
      stopRequest,
    });
    const request = { args: program.args, known: packaged?.configArguments ?? {}, jobs };
    const print = (line: string) => void process.stdout.write(`${line}\n`);
    const result = await autotune({ ...request, print }).finally(() => stopRequest.dispose());
    if (result.isInterrupted || stopRequest.isDue) return INTERRUPTED;
    if (result.file === null) return 1;
    return mode === 'run' ? launch(launchOptions, { ...program, args: result.args }) : 0;
  });
}

/** Records stop requests, also between two jobs: a signal, or the end of the output's reader. */
class StopRequest {
  isDue = false;
  private readonly onStop = (): void => {
    this.isDue = true;
  };

  constructor() {
    for (const signal of INTERRUPTS) process.on(signal, this.onStop);
    process.stdout.on('error', this.onStop);
  }

  dispose(): void {
    for (const signal of INTERRUPTS) process.off(signal, this.onStop);
    process.stdout.off('error', this.onStop);
  }
}

function createJobs(
  options: LaunchOptions,
  program: Program,
  { job, remote }: LaunchJob,
  { name, stopRequest }: { name: string; stopRequest: StopRequest },
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
    command: (args) => ['ds', ...formatOptions(options), name, ...args].map(quote).join(' '),
    async run(args, files) {
      const logs = new JobLogs(files, reportOnce);
      const { line: write } = logs;
      const notice = (text: string): void => write('err', `ds: ${text}`);
      try {
        const plan = await planJob(options, { ...program, args }, notice);
        if (stopRequest.isDue) return { code: INTERRUPTED, isInterrupted: true };
        const { failure } = await runJob(plan, { write, notice, isTerminal: false });
        return { code: failure ? exitCode(failure) : 0, isInterrupted: stopRequest.isDue };
      } finally {
        await logs.close();
      }
    },
  };
}

/** Returns the command-line options that start one experiment. */
function formatOptions(options: LaunchOptions): string[] {
  return Object.entries(options).flatMap(([name, value]) => {
    if (name === 'bind_cores_to_rank') return value ? [] : ['--no-bind_cores_to_rank'];
    if (value === true) return [`--${name}`];
    const isStandard =
      (name === 'launcher' && value === 'ssh') || (name === 'grace_period' && value === 30);
    return isStandard || value === false || value === undefined ? [] : [`--${name}`, String(value)];
  });
}

// A member of a tree of processes: a rank here, or the launcher of another node.
import { constants } from 'node:os';

/** How a member ended. */
export interface Exit {
  /** Null when a signal ended it. */
  code: number | null;
  signal: NodeJS.Signals | null;
  /** The name of the member: "rank 3 on host a". */
  who: string;
  /** The last lines of its standard error, where they were not shown as they came. */
  lastLines: readonly string[];
}

export interface JobProcess {
  /** Settles when its process is gone and its output was read; never rejects. */
  readonly exited: Promise<Exit>;
  /** Settles at its first failure, if it has one; the last lines may still grow until `exited`. */
  readonly failing: Promise<Exit>;
  /** Sends a stop request. */
  stop(signal: NodeJS.Signals): void;
  /** Ends it and everything that it started. */
  kill(): void;
}

/** The exit code as a shell reports it: 128 + the number of a signal. */
export function exitCode({ code, signal }: Pick<Exit, 'code' | 'signal'>): number {
  if (code !== null) return code;
  return 128 + (signal === null ? 0 : constants.signals[signal]);
}

/** "exit code 7" or "signal SIGKILL", with the usual cause of the signal. */
export function describeExit({ code, signal }: Pick<Exit, 'code' | 'signal'>): string {
  if (signal === null) return `exit code ${code}`;
  const cause = signal === 'SIGKILL' ? ' (killed from outside; often out of memory)' : '';
  return `signal ${signal}${cause}`;
}

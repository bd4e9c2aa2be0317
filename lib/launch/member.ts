// A member of a job's process tree: a rank on this node, or the launcher of another node.
import { constants } from 'node:os';

/** How a member ended. */
export interface Exit {
  /** Exit code; null if a signal ended the member. */
  code: number | null;
  signal: NodeJS.Signals | null;
  /** Name of the member: "rank 3 on host a". */
  who: string;
  /** The last lines of standard error; empty if they were already shown. */
  lastLines: readonly string[];
}

export interface JobProcess {
  /** Resolves when the process has ended and its output has been read; never rejects. */
  readonly exited: Promise<Exit>;
  /** Resolves at the first failure, if any; `lastLines` may grow until `exited`. */
  readonly failing: Promise<Exit>;
  /** Sends a stop request. */
  stop(signal: NodeJS.Signals): void;
  /** Ends the member and all its descendants. */
  kill(): void;
}

/** Returns the exit code as a shell reports it: 128 + the number of a signal. */
export function exitCode({ code, signal }: Pick<Exit, 'code' | 'signal'>): number {
  if (code !== null) return code;
  return 128 + (signal === null ? 0 : constants.signals[signal]);
}

/** Returns "exit code 7" or "signal SIGKILL", with the usual cause of the signal. */
export function describeExit({ code, signal }: Pick<Exit, 'code' | 'signal'>): string {
  if (signal === null) return `exit code ${code}`;
  const cause = signal === 'SIGKILL' ? ' (killed from outside; often out of memory)' : '';
  return `signal ${signal}${cause}`;
}

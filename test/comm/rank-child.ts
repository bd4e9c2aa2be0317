// A process that is one rank: how Node runs its program, and its output.
import type { ChildProcess } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';

export interface RankResult {
  rank: number;
  code: number | null;
  signal: NodeJS.Signals | null;
  /** The report of the rank: the JSON value of its last line of output. */
  report: unknown;
  stderr: string;
}

export interface RankOptions {
  /** Passed to the program as JSON. */
  job?: unknown;
  environment?: Record<string, string>;
  /** The command that runs a rank's command, such as one that enters a network namespace. */
  wrapper?: (rank: number) => readonly string[];
  /**
   * A process is killed after so many milliseconds; `stderr` then lists the state of its threads.
   */
  limit?: number;
  /** Receives the processes after each start. */
  started?: (children: readonly ChildProcess[]) => void;
  /** Called with each line that a rank prints. */
  line?: (rank: number, text: string, children: readonly ChildProcess[]) => void;
}

/**
 * Longer than any test needs on a busy machine, shorter than jest's limit; processes are killed
 * after it.
 */
const LIMIT_MS = 300_000;

/** The kernel's wait state of each thread, for a process that hangs. */
function threadsOf(pid: number): string {
  const part = (path: string) => {
    try {
      return readFileSync(path, 'utf8').trim();
    } catch (error) {
      return `(${(error as NodeJS.ErrnoException).code})`;
    }
  };
  const folder = `/proc/${pid}/task`;
  const lines = readdirSync(folder).map((id) => {
    const at = (name: string) => part(`${folder}/${id}/${name}`);
    const state = /^State:\s*(.*)$/m.exec(at('status'))?.[1];
    const [user, system] = at('stat').split(') ').pop()?.split(' ').slice(11, 13) ?? [];
    const stack = at('stack').replaceAll('\n', '\n    ');
    const where = `wchan ${at('wchan')}, syscall ${at('syscall').split(' ')[0]}`;
    return `  ${id} ${at('comm')}: ${state}, ${where}, ticks ${user}+${system}\n    ${stack}`;
  });
  return `still running; its threads:\n${lines.join('\n')}\n`;
}

/**
 * How this Node runs `program`, a file of this folder without extension: compiled, or through swc.
 */
export function commandFor(program: string): string[] {
  const compiled = __filename.endsWith('.js');
  if (compiled) return [join(__dirname, `${program}.js`)];
  return ['-r', join(__dirname, '../support/run-typescript.cjs'), join(__dirname, `${program}.ts`)];
}

/**
 * The last line of stdout and of stderr of a rank in a reused process; in stdout an exit code
 * follows.
 */
export const END = '\u0004 end of the rank ';

/** Resolves when the process has exited, or when its rank has printed END. */
export function whenEnded(
  child: ChildProcess,
  rank: number,
  limit = LIMIT_MS,
  line: (text: string) => void = () => {},
): Promise<RankResult> {
  return new Promise((resolve) => {
    const read = { stderr: '', partial: '', last: '' };
    const ends: { code?: number; errors?: boolean } = {};
    const finish = (code: number | null, signal: NodeJS.Signals | null): void => {
      clearTimeout(timer);
      child.stdout?.off('data', onOutput);
      child.stderr?.off('data', onErrors);
      child.off('close', finish);
      resolve({ rank, code, signal, report: parse(read.last), stderr: read.stderr });
    };
    const finishOfRank = (): void => {
      if (ends.code !== undefined && ends.errors) finish(ends.code, null);
    };
    const onOutput = (data: Buffer): void => {
      const lines = (read.partial + data).split('\n');
      read.partial = lines.pop() ?? '';
      for (const text of lines) {
        if (text.startsWith(END)) {
          ends.code = Number(text.slice(END.length));
          finishOfRank();
          return;
        }
        read.last = text;
        line(text);
      }
    };
    const onErrors = (data: Buffer): void => {
      read.stderr += data;
      const at = read.stderr.indexOf(END);
      if (at < 0) return;
      read.stderr = read.stderr.slice(0, at);
      ends.errors = true;
      finishOfRank();
    };
    const timer = setTimeout(() => {
      read.stderr += child.pid ? threadsOf(child.pid) : '';
      child.kill('SIGKILL');
    }, limit);
    child.stdout?.on('data', onOutput);
    child.stderr?.on('data', onErrors);
    child.on('close', finish);
  });
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

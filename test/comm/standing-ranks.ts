// Processes that serve as a rank of one job after another, because opening a GPU context takes
// seconds.
import { type ChildProcess, spawn } from 'node:child_process';
import { commandFor, type RankOptions, type RankResult, whenEnded } from './rank-child.js';

/**
 * Programs that leave no state in their process. They close their job and read the environment when
 * they start. They do not install process handlers and do not measure the process.
 */
const STANDING: ReadonlySet<string> = new Set([
  'collective-process',
  'exchange-process',
  '../checkpoint/resume-process',
  '../parallel/layers-process',
  '../parallel/models-process',
  '../parallel/sequence-process',
  '../pipe/pipeline-process',
  '../trainer/ranks-process',
  '../zero/codes-process',
  '../zero/dropout-process',
  '../zero/frozen-process',
  '../zero/onebit-process',
  '../zero/shapes-process',
  '../zero/train-process',
]);

/** The next program of a process. */
export interface Turn {
  /** Path of the program. */
  program: string;
  environment: NodeJS.ProcessEnv;
  /** Options as JSON. */
  job: string;
}

/** Idle processes by rank; a rank always uses the same GPU. */
const waiting = new Map<number, ChildProcess>();

export function canStand(program: string, options: RankOptions): boolean {
  const { environment, wrapper, started } = options;
  return STANDING.has(program) && !environment && !wrapper && !started;
}

export async function runOnStanding(
  program: string,
  environments: readonly NodeJS.ProcessEnv[],
  { job, limit, line }: RankOptions,
): Promise<RankResult[]> {
  const path = commandFor(program).at(-1) as string;
  const children = environments.map((_, rank) => take(rank));
  const ends = children.map((child, rank) =>
    whenEnded(child, rank, limit, (text) => line?.(rank, text, children)),
  );
  children.forEach((child, rank) => {
    const environment = environments[rank] as NodeJS.ProcessEnv;
    const turn: Turn = { program: path, environment, job: JSON.stringify(job ?? null) };
    child.send(turn, () => {}); // If the process is gone, its exit event reports that.
  });
  const results = await Promise.all(ends);
  const good = results.every(({ code }) => code === 0);
  children.forEach((child, rank) => {
    if (good) wait(rank, child);
    else child.kill('SIGKILL'); // A failed rank may leave unknown state behind.
  });
  return results;
}

function take(rank: number): ChildProcess {
  const found = waiting.get(rank);
  waiting.delete(rank);
  if (found?.connected) {
    hold(found, 'ref');
    return found;
  }
  return spawn(process.execPath, commandFor('standing-process'), {
    stdio: ['ignore', 'pipe', 'pipe', 'ipc'],
  });
}

/**
 * Keeps the process alive without blocking the exit of its parent; it ends when the parent ends.
 */
function wait(rank: number, child: ChildProcess): void {
  const other = waiting.get(rank);
  if (other) {
    child.kill('SIGKILL');
    return;
  }
  hold(child, 'unref');
  waiting.set(rank, child);
}

function hold(child: ChildProcess, how: 'ref' | 'unref'): void {
  child[how]();
  child.channel?.[how]();
  for (const stream of [child.stdout, child.stderr]) {
    (stream as unknown as Record<typeof how, () => void>)[how]();
  }
}

/** Ends idle processes; the next job starts new ones. */
export function endStanding(): void {
  for (const child of waiting.values()) child.kill('SIGKILL');
  waiting.clear();
}

// Jest isolates its test files: the hook comes from the jest environment.
const { atEndOfFile } = globalThis as { atEndOfFile?: (body: () => void) => void };
atEndOfFile?.(endStanding);

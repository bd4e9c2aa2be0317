// Processes that are a rank of one job after another: a GPU's context alone takes seconds to open.
import { type ChildProcess, spawn } from 'node:child_process';
import { commandFor, ended, type RankOptions, type RankResult } from './rank-child.js';

/**
 * Programs that leave their process as they found it: they close their job, take their place from
 * the environment when they start, and neither listen to the process nor measure it.
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

/** What the process is told to be next. */
export interface Turn {
  /** Its path. */
  program: string;
  environment: NodeJS.ProcessEnv;
  /** JSON. */
  job: string;
}

/** Those that wait for a turn, by rank: a rank's GPU is always the same. */
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
    ended(child, rank, limit, (text) => line?.(rank, text, children)),
  );
  children.forEach((child, rank) => {
    const environment = environments[rank] as NodeJS.ProcessEnv;
    const turn: Turn = { program: path, environment, job: JSON.stringify(job ?? null) };
    child.send(turn, () => {}); // Of one that is gone, its end is told.
  });
  const results = await Promise.all(ends);
  const good = results.every(({ code }) => code === 0);
  children.forEach((child, rank) => {
    if (good) wait(rank, child);
    else child.kill('SIGKILL'); // Nobody knows what a rank that failed leaves behind.
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

/** It lives on, and keeps nobody from ending: with its parent it ends by itself. */
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

/** Ends those that wait; the next job starts new ones. */
export function endStanding(): void {
  for (const child of waiting.values()) child.kill('SIGKILL');
  waiting.clear();
}

// Under jest, whose files know nothing of each other: see its environment.
const { atEndOfFile } = globalThis as { atEndOfFile?: (body: () => void) => void };
atEndOfFile?.(endStanding);

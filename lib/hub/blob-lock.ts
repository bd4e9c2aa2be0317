// The lock of a blob: one process of a machine downloads it, the others wait. Python takes the same
// lock (flock). The kernel releases it when its owner ends, also by a signal.
import { close, fstat, open } from 'node:fs';
import { stat } from 'node:fs/promises';
import { dirname } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { promisify } from 'node:util';

import { makeFolder } from '../checkpoint/make-folder.js';
import { DsError } from '../errors.js';
import { lockFile } from '../runtime/file.js';

/** Pause between two attempts, and time without progress of the owner until a wait ends. */
const [PAUSE_MS, PATIENCE_MS] = [100, 600_000];

/** How to wait for another owner. */
export interface WaitOptions {
  readonly signal: AbortSignal;
  /** Returns a number that changes while the owner makes progress. */
  progress(): Promise<number>;
  /** Called once, when the wait begins. */
  begun(): void;
}

/** Releases a lock. */
export type Release = () => Promise<void>;

/**
 * Resolves when this process owns the lock. Resolves with null if the file system has no locks.
 * Rejects with DS_HUB if the owner makes no progress for ten minutes.
 */
export async function takeLock(path: string, waiting: WaitOptions): Promise<Release | null> {
  await makeFolder(dirname(path));
  let last = -1;
  let since = performance.now();
  for (let waits = 0; ; ++waits) {
    const taken = await tryLock(path);
    if (taken !== false) return taken;
    if (waits === 1) waiting.begun();
    const now = await waiting.progress();
    if (now !== last) since = performance.now();
    last = now;
    if (performance.now() - since > PATIENCE_MS) throw stuck(path);
    await delay(PAUSE_MS, undefined, { signal: waiting.signal });
  }
}

/** Returns true if a process holds the lock. */
export async function isLocked(path: string): Promise<boolean> {
  if (!(await stat(path).catch(() => null))) return false;
  const taken = await tryLock(path);
  if (taken) await taken();
  return taken === false;
}

/** Returns false if another process has the lock, null if there are no locks. */
async function tryLock(path: string): Promise<Release | null | false> {
  for (;;) {
    const descriptor = await promisify(open)(path, 'a+', 0o666);
    const release = () => promisify(close)(descriptor).catch(() => {});
    const isTaken = await lockFile(descriptor).catch((error: unknown) => {
      if (error instanceof DsError && error.code === 'DS_IO') return null;
      throw error;
    });
    // The last owner may have deleted the file: its lock would protect nothing.
    if (isTaken && (await isSame(descriptor, path))) return release;
    await release();
    if (!isTaken) return isTaken;
  }
}

async function isSame(descriptor: number, path: string): Promise<boolean> {
  const ownStats = await promisify(fstat)(descriptor);
  const there = await stat(path).catch(() => null);
  return there !== null && there.ino === ownStats.ino && there.dev === ownStats.dev;
}

function stuck(path: string): DsError {
  return new DsError({
    code: 'DS_HUB',
    op: path,
    expected: 'progress of the process that owns this lock',
    got: `no new byte for ${PATIENCE_MS / 60_000} minutes`,
    hint: 'End that process: `fuser` prints its number. Its bytes are kept.',
  });
}

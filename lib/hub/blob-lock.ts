// Locks a blob, so that one process of a machine downloads it while other processes wait. Python's
// huggingface_hub takes the same lock (flock). The kernel releases a lock when its owner ends, also
// by a signal.
import { close, fstat, open } from 'node:fs';
import { stat } from 'node:fs/promises';
import { dirname } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { promisify } from 'node:util';

import { makeFolder } from '../checkpoint/make-folder.js';
import { DsError } from '../errors.js';
import { lockFile } from '../runtime/file.js';

/**
 * Milliseconds between two attempts, and milliseconds without progress of the owner after which a
 * wait fails.
 */
const [PAUSE_MS, STALL_MS] = [100, 600_000];

/** Options of a wait for another owner. */
interface WaitOptions {
  readonly signal: AbortSignal;
  /** Returns a number that changes while the owner makes progress. */
  progress(): Promise<number>;
  /** Called once, when the first two attempts have failed. */
  onWait(): void;
}

/** Releases a lock. */
type Release = () => Promise<void>;

/**
 * Takes the lock, waiting for another owner. Resolves with null if the file system has no locks.
 * Rejects with DS_HUB if the owner makes no progress for ten minutes.
 */
export async function takeLock(path: string, waiting: WaitOptions): Promise<Release | null> {
  await makeFolder(dirname(path));
  let lastProgress = -1;
  let progressAt = performance.now();
  for (let waits = 0; ; ++waits) {
    const release = await tryLock(path);
    if (release !== false) return release;
    if (waits === 1) waiting.onWait();
    const progress = await waiting.progress();
    if (progress !== lastProgress) progressAt = performance.now();
    lastProgress = progress;
    if (performance.now() - progressAt > STALL_MS) throw stuckLockError(path);
    await delay(PAUSE_MS, undefined, { signal: waiting.signal });
  }
}

/** Returns whether a process holds the lock. */
export async function isLocked(path: string): Promise<boolean> {
  if (!(await stat(path).catch(() => null))) return false;
  const release = await tryLock(path);
  if (release) await release();
  return release === false;
}

/** Tries to take the lock. Returns false if another process has it, null if there are no locks. */
async function tryLock(path: string): Promise<Release | null | false> {
  for (;;) {
    const descriptor = await promisify(open)(path, 'a+', 0o666);
    const release = () => promisify(close)(descriptor).catch(() => {});
    const isOwned = await lockFile(descriptor).catch((error: unknown) => {
      if (error instanceof DsError && error.code === 'DS_IO') return null;
      throw error;
    });
    // The last owner may have deleted the file. A lock on a deleted file protects nothing.
    if (isOwned && (await isSameFile(descriptor, path))) return release;
    await release();
    if (!isOwned) return isOwned;
  }
}

async function isSameFile(descriptor: number, path: string): Promise<boolean> {
  const openStats = await promisify(fstat)(descriptor);
  const pathStats = await stat(path).catch(() => null);
  return pathStats !== null && pathStats.ino === openStats.ino && pathStats.dev === openStats.dev;
}

function stuckLockError(path: string): DsError {
  return new DsError({
    code: 'DS_HUB',
    op: path,
    expected: 'progress of the process that owns this lock',
    got: `no new byte for ${STALL_MS / 60_000} minutes`,
    hint: 'End that process: `fuser` prints its number. Its bytes are kept.',
  });
}

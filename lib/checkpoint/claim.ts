// A claim: a file that marks the hidden folders of a running save.
//
// D/.save-<owner> names an owner, a random number. The save's folders (commit.ts) have the same
// owner in their names. The file is locked (flock) while the save runs: the kernel releases the
// lock with the process, for every kind of end and in every PID namespace. So a claim with a free
// lock belongs to a dead save, and its folders may be deleted.
//
// Locks are reliable within one kernel: on a local file system, or between processes of one host
// since its last boot. Elsewhere (a network file system may keep its locks per host, or have no
// locks) a host cannot detect if the other host's save runs. There a claim counts as abandoned a
// day after its creation.
import { randomBytes } from 'node:crypto';
import { close, fstat, fsync, open, writeFile } from 'node:fs';
import { readdir, readFile, statfs, unlink } from 'node:fs/promises';
import { hostname } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';

import { DsError } from '../errors.js';
import { lockFile } from '../runtime/file.js';

/** Age after which a claim with an unreliable lock counts as abandoned. */
const ABANDONED_MS = 24 * 3600 * 1000;

const NAME = /^\.save-([0-9a-f]{32})$/;
const PURPOSE =
  'A save of @ds/native is under way. The next save deletes this file if this one has died.';

/** statfs types of file systems with locks that all readers of the files see. */
const LOCAL = new Set([
  0xef53, // ext2 to ext4
  0x58465342, // XFS
  0x9123683e, // Btrfs
  0x01021994, // tmpfs
  0x794c7630, // overlay
  0x2fc12fc1, // ZFS
  0xf2f52010, // F2FS
  0xca451a4e, // bcachefs
]);

interface Statement {
  purpose: string;
  owner: string;
  /** Boot ID of the kernel with the locks; null if unknown. */
  boot: string | null;
  /** Whether the file system took the lock. */
  locked: boolean;
  /** Information for users only. */
  host: string;
  pid: number;
}

/** Holds the lock from take() to release(), or to the end of the process. */
export class Claim {
  private constructor(
    readonly dir: string,
    readonly owner: string,
    private readonly descriptor: number,
  ) {}

  /** Rejects with Node's errors. */
  static async take(dir: string): Promise<Claim> {
    for (;;) {
      const owner = randomBytes(16).toString('hex');
      const path = join(dir, `.save-${owner}`);
      const descriptor = await promisify(open)(path, 'wx+');
      let taken = false;
      try {
        // Before the lock, another save may take the file for an abandoned claim and delete it.
        const locked = await tryLock(descriptor);
        if (locked === false) continue;
        const statement = {
          purpose: PURPOSE,
          owner,
          boot: await bootId(),
          locked: locked === true,
        };
        const text = JSON.stringify({ ...statement, host: hostname(), pid: process.pid });
        await promisify(writeFile)(descriptor, text);
        await promisify(fsync)(descriptor);
        const { nlink } = await promisify(fstat)(descriptor);
        taken = nlink > 0;
        if (taken) return new Claim(dir, owner, descriptor);
      } finally {
        if (!taken) await deleteClaim(path, descriptor);
      }
    }
  }

  /**
   * Releases the lock, but keeps the file, so that the next save deletes the folders. Never
   * rejects.
   */
  async leave(): Promise<void> {
    await promisify(close)(this.descriptor).catch(() => undefined);
  }

  /** Deletes the claim after its folders are gone. Never rejects. */
  async release(): Promise<void> {
    await deleteClaim(join(this.dir, `.save-${this.owner}`), this.descriptor);
  }
}

async function deleteClaim(path: string, descriptor: number): Promise<void> {
  await unlink(path).catch(() => undefined);
  await promisify(close)(descriptor).catch(() => undefined);
}

/**
 * Runs `clear` for every claim in `dir` of a dead save. If `clear` returns true, nothing is left,
 * and the claim is deleted. The lock prevents concurrent clearing. Failures are ignored, because
 * leftovers do not block a save.
 */
export async function clearDead(
  dir: string,
  clear: (owner: string) => Promise<boolean>,
): Promise<void> {
  for (const name of await readdir(dir)) {
    const owner = NAME.exec(name)?.[1];
    if (!owner) continue;
    const path = join(dir, name);
    const descriptor = await promisify(open)(path, 'r+').catch(() => null);
    if (descriptor === null) continue;
    try {
      if (!(await isDead(dir, path, owner, descriptor))) continue;
      if (await clear(owner)) await unlink(path);
    } catch {
      // The next save tries again.
    } finally {
      await promisify(close)(descriptor).catch(() => undefined);
    }
  }
}

/** Takes the claim's lock if it is free. */
async function isDead(
  dir: string,
  path: string,
  owner: string,
  descriptor: number,
): Promise<boolean> {
  const status = await promisify(fstat)(descriptor);
  if (!status.isFile() || status.size > 4096) return false;
  const locked = await tryLock(descriptor);
  if (locked === false) return false;
  const text = await readFile(path, 'utf8');
  // A save that was killed before it wrote its claim left an empty file and no folders.
  const unsaid = { purpose: PURPOSE, owner, boot: null, locked: true };
  const statement = (text === '' ? unsaid : JSON.parse(text)) as Partial<Statement> | null;
  if (statement?.purpose !== PURPOSE || statement.owner !== owner) return false;
  if (locked && statement.locked) {
    const boot = await bootId();
    if (boot !== null && statement.boot === boot) return true;
    if (LOCAL.has((await statfs(dir)).type)) return true;
  }
  return Date.now() - status.mtimeMs > ABANDONED_MS;
}

/** Resolves with whether the lock is taken; null if the file system has no locks. */
async function tryLock(descriptor: number): Promise<boolean | null> {
  return lockFile(descriptor).catch((error: unknown) => {
    if (error instanceof DsError && error.code === 'DS_IO') return null;
    throw error;
  });
}

async function bootId(): Promise<string | null> {
  const text = await readFile('/proc/sys/kernel/random/boot_id', 'utf8').catch(() => null);
  return text?.trim() || null;
}

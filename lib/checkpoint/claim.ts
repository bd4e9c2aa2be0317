// Claims. A claim is a locked file that protects the hidden folders of a running save from deletion
// by other saves.
//
// A save creates D/.save-<owner>, where <owner> is a random number. The hidden folders of the save
// (commit.ts) have the same <owner> in their names. The save holds a lock (flock) on the file. The
// kernel releases the lock when the process ends, however it ends and in every PID namespace. So a
// claim with a free lock belongs to a dead save, and its folders may be deleted.
//
// A lock is reliable within one kernel: on a local file system, or between processes of one host
// since its last boot. A network file system may keep locks per host, or may not support locks.
// There, one host cannot detect whether a save of another host still runs, so a claim counts as
// abandoned one day after its creation.
import { randomBytes } from 'node:crypto';
import { close, fstat, fsync, open, writeFile } from 'node:fs';
import { readdir, readFile, statfs, unlink } from 'node:fs/promises';
import { hostname } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';

import { DsError } from '../errors.js';
import { lockFile } from '../runtime/file.js';

/** Age after which a claim counts as abandoned if its lock is unreliable. */
const ABANDONED_MS = 24 * 3600 * 1000;

const NAME = /^\.save-([0-9a-f]{32})$/;
const PURPOSE =
  'A save of @ds/native is under way. The next save deletes this file if this one has died.';

/**
 * File systems, by the type of statfs. Every process that sees their files also sees their locks.
 */
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
  /** Boot ID of the kernel that held the lock; null if unknown. */
  boot: string | null;
  /** Whether the file system supports locks. */
  locked: boolean;
  /** `host` and `pid` only inform a user. */
  host: string;
  pid: number;
}

/**
 * The claim of one save. It holds the lock from take() to leave(), release(), or the end of the
 * process.
 */
export class Claim {
  private constructor(
    readonly dir: string,
    readonly owner: string,
    private readonly descriptor: number,
  ) {}

  /** Creates a claim in `dir` and locks it. Rejects with the errors of Node's file calls. */
  static async take(dir: string): Promise<Claim> {
    for (;;) {
      const owner = randomBytes(16).toString('hex');
      const path = join(dir, `.save-${owner}`);
      const descriptor = await promisify(open)(path, 'wx+');
      let taken = false;
      try {
        // Between creation and lock, another save may take the file for an abandoned claim and
        // delete it. The link count below detects the deletion; then the loop creates another
        // claim.
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
   * Releases the lock, but keeps the file, so that the next save deletes the save's folders. Never
   * rejects.
   */
  async leave(): Promise<void> {
    await promisify(close)(this.descriptor).catch(() => undefined);
  }

  /**
   * Deletes the file and releases the lock. The caller has deleted the save's folders. Never
   * rejects.
   */
  async release(): Promise<void> {
    await deleteClaim(join(this.dir, `.save-${this.owner}`), this.descriptor);
  }
}

async function deleteClaim(path: string, descriptor: number): Promise<void> {
  await unlink(path).catch(() => undefined);
  await promisify(close)(descriptor).catch(() => undefined);
}

/**
 * Calls `clear` with the owner of every claim of a dead save in `dir`. If `clear` resolves with
 * true (the folders of the owner are gone), the claim is deleted. The lock keeps two saves from
 * clearing the same owner. Failures are ignored, because leftovers do not block a save.
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

/** Returns whether the save of a claim is dead. If so, this process then holds the claim's lock. */
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
  const unwritten = { purpose: PURPOSE, owner, boot: null, locked: true };
  const statement = (text === '' ? unwritten : JSON.parse(text)) as Partial<Statement> | null;
  if (statement?.purpose !== PURPOSE || statement.owner !== owner) return false;
  if (locked && statement.locked) {
    const boot = await bootId();
    if (boot !== null && statement.boot === boot) return true;
    if (LOCAL.has((await statfs(dir)).type)) return true;
  }
  return Date.now() - status.mtimeMs > ABANDONED_MS;
}

/**
 * Resolves with true if the lock was free and is now held, and with false if another process holds
 * it. Resolves with null if the file system has no locks.
 */
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

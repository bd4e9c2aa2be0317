// A claim: the file by which a save says that the hidden folders of its name are its own, and that
// it lives.
//
// D/.save-<owner> names an owner, a random number of which the save's folders (commit.ts) carry the
// same. It is locked (flock) as long as the save lives: the kernel drops the lock with the process,
// whatever ends it and whichever PID namespace it was in. So a claim whose lock is free was left by
// a dead save, and what it names may be deleted.
//
// Locks are believed where they are one kernel's: on a local file system, or between processes of
// one machine since its last boot. Elsewhere (a network file system may keep its locks to each
// host, or have none) nobody can tell whether the other host's save lives; there a claim counts as
// abandoned a day after it was made.
import { randomBytes } from 'node:crypto';
import { close, fstat, fsync, open, writeFile } from 'node:fs';
import { readdir, readFile, statfs, unlink } from 'node:fs/promises';
import { hostname } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';

import { DsError } from '../errors.js';
import { lockFile } from '../runtime/file.js';

/** After this long, a claim whose lock says nothing is taken for abandoned. */
const ABANDONED_MS = 24 * 3600 * 1000;

const NAME = /^\.save-([0-9a-f]{32})$/;
const PURPOSE =
  'A save of @ds/native is under way. The next save deletes this file if this one has died.';

/** statfs types of file systems whose locks are seen by everyone who sees the files. */
const LOCAL = new Set([
  ...[0xef53, 0x58465342, 0x9123683e, 0x01021994], // ext2 to ext4, XFS, Btrfs, tmpfs
  ...[0x794c7630, 0x2fc12fc1, 0xf2f52010, 0xca451a4e], // overlay, ZFS, F2FS, bcachefs
]);

interface Statement {
  purpose: string;
  owner: string;
  /** Whose kernel's locks these are; null where the kernel does not say. */
  boot: string | null;
  /** Whether the file system took the lock. */
  locked: boolean;
  /** For people who look: nothing depends on them. */
  host: string;
  pid: number;
}

/** The lock is held from take() to release(), or to the end of the process. */
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
        // Whoever finds the file before it is locked takes it for a dead save's, and deletes it.
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
        if (!taken) await letGo(path, descriptor);
      }
    }
  }

  /** Gives it up with what it names, which the next save deletes. Never rejects. */
  async leave(): Promise<void> {
    await promisify(close)(this.descriptor).catch(() => undefined);
  }

  /** What it names is gone. Never rejects. */
  async release(): Promise<void> {
    await letGo(join(this.dir, `.save-${this.owner}`), this.descriptor);
  }
}

async function letGo(path: string, descriptor: number): Promise<void> {
  await unlink(path).catch(() => undefined);
  await promisify(close)(descriptor).catch(() => undefined);
}

/**
 * Runs `clear` for every claim in `dir` whose save is dead; where it says that nothing is left, the
 * claim goes too. Nobody else clears it meanwhile. What fails stays as it is: leftovers never stand
 * in a save's way.
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

/** Takes the claim's lock where it is free. */
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
  // A save that was killed before it had said anything left an empty file, and nothing else.
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

/** Null where the file system has no locks. */
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

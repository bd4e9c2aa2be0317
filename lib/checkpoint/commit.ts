// Making a checkpoint appear: whole or not at all, whenever the process or the machine dies.
//
// A save of tag T in folder D goes through these states, and each rename is atomic:
//
//   1. D/.tmp-T-<owner> is filled; its files and then the folder itself are synced to disk.
//   2. Where D/T exists already: D/T is renamed to D/.old-T-<owner>.
//   3. D/.tmp-T-<owner> is renamed to D/T, and D is synced.
//   4. D/.old-T-<owner> is deleted.
//   5. `latest` is replaced: written under another name, synced, renamed, D synced.
//   6. Tags that are no longer wanted are renamed to D/.gone-T-<owner>, then deleted: retention.ts.
//
// A death in 1 leaves the old D/T; between 2 and 3 the old one under its .old name, where a reader
// finds it (see find()) and from where the next save moves it back; after 3 the new one. `latest`
// never names what is not there. What a dead owner left behind is deleted by the next save.
import { randomBytes } from 'node:crypto';
import { mkdir, readdir, rename, rm, stat, writeFile } from 'node:fs/promises';
import { hostname } from 'node:os';
import { join } from 'node:path';

import { DsError } from '../errors.js';
import { syncPath } from '../runtime/file.js';
import { LATEST } from './directory.js';
import { makeFolder } from './make-folder.js';

/** After this long, what another host left behind is taken for abandoned. */
const ABANDONED_MS = 24 * 3600 * 1000;

/** ".tmp-<tag>-<host>~<pid>~<random>"; neither host nor the rest holds a "~" of its own. */
const LEFTOVER = /^\.(tmp|old|gone)-(.+)-([^~]*)~(\d+)~[0-9a-f]+$/;

function owner(): string {
  const host = hostname().replace(/[^\w.]/g, '_');
  return `${host}~${process.pid}~${randomBytes(6).toString('hex')}`;
}

/** A save under way. */
export interface Draft {
  dir: string;
  tag: string;
  /** What makes the names of this save's folders its own. */
  suffix: string;
}

/** The folder that a draft is written to. */
export const draftFolder = ({ dir, suffix }: Draft): string => join(dir, `.tmp-${suffix}`);

/** Makes an empty folder for `dir`/`tag`, and `dir` where it is missing. Throws DS_IO. */
export async function begin(dir: string, tag: string): Promise<Draft> {
  const draft = { dir, tag, suffix: `${tag}-${owner()}` };
  return orDsError(dir, async () => {
    await makeFolder(dir);
    await clearLeftovers(dir);
    await mkdir(draftFolder(draft));
    return draft;
  });
}

/** The filled draft becomes `dir`/`tag`; then `latest` names it, if asked to. Returns its path. Throws DS_IO. */
export async function publish(draft: Draft, saveLatest: boolean): Promise<string> {
  const { dir, tag, suffix } = draft;
  return orDsError(dir, async () => {
    await syncPath(draftFolder(draft));
    await replace(dir, tag, suffix);
    await rm(join(dir, `.old-${suffix}`), { recursive: true, force: true });
    if (saveLatest) await pointLatest(dir, tag);
    return join(dir, tag);
  });
}

/** Deletes a draft; nothing else has changed. */
export async function abandon(draft: Draft): Promise<void> {
  await rm(draftFolder(draft), { recursive: true, force: true }).catch(() => undefined);
}

/** Deletes `dir`/`tag`, atomically: it is never seen in part. */
export async function removeTag(dir: string, tag: string): Promise<void> {
  const aside = join(dir, `.gone-${tag}-${owner()}`);
  await orDsError(dir, async () => {
    await rename(join(dir, tag), aside);
    await rm(aside, { recursive: true, force: true });
  });
}

async function replace(dir: string, tag: string, suffix: string): Promise<void> {
  const final = join(dir, tag);
  const old = join(dir, `.old-${suffix}`);
  if (await exists(final)) await rename(final, old);
  try {
    await rename(join(dir, `.tmp-${suffix}`), final);
  } catch (error) {
    if (await exists(old)) await rename(old, final);
    throw error;
  }
  await syncPath(dir);
}

async function pointLatest(dir: string, tag: string): Promise<void> {
  const temporary = join(dir, `.latest-${owner()}`);
  await writeFile(temporary, tag);
  await syncPath(temporary);
  await rename(temporary, join(dir, LATEST));
  await syncPath(dir);
}

/**
 * The folder of `tag`: `dir`/`tag`, or where a save that died between its two renames has put it.
 * Null when there is none. Changes nothing.
 */
export async function find(dir: string, tag: string): Promise<string | null> {
  const final = join(dir, tag);
  if (await exists(final)) return final;
  for (const name of await readdir(dir).catch(() => [])) {
    const [, kind, leftTag] = LEFTOVER.exec(name) ?? [];
    if (kind === 'old' && leftTag === tag) return join(dir, name);
  }
  return null;
}

/** Moves back what a dead save had set aside, and deletes what it had begun. */
async function clearLeftovers(dir: string): Promise<void> {
  for (const name of await readdir(dir)) {
    if (name.startsWith('.latest-') && (await isAbandoned(dir, name)))
      await rm(join(dir, name), { force: true });
    const [, kind, tag] = LEFTOVER.exec(name) ?? [];
    if (!kind || !tag || !(await isAbandoned(dir, name))) continue;
    const path = join(dir, name);
    if (kind === 'old' && !(await exists(join(dir, tag)))) await rename(path, join(dir, tag));
    else await rm(path, { recursive: true, force: true });
  }
}

/**
 * Whether the process that made `name` cannot be working on it any more: it is gone, or had this
 * process's number before it (containers reuse them). On another host that cannot be known, only
 * guessed by age.
 */
async function isAbandoned(dir: string, name: string): Promise<boolean> {
  const [host, pid] = name.slice(name.lastIndexOf('-') + 1).split('~');
  const [thisHost] = owner().split('~');
  const status = await stat(join(dir, name)).catch(() => null);
  if (!status) return false;
  if (host !== thisHost) return Date.now() - status.mtimeMs > ABANDONED_MS;
  if (Number(pid) !== process.pid) return !isAlive(Number(pid));
  return status.mtimeMs < Date.now() - process.uptime() * 1000;
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM';
  }
}

async function exists(path: string): Promise<boolean> {
  return stat(path).then(
    () => true,
    () => false,
  );
}

/** Runs `body`; failures of Node's own file calls come out in the library's form. */
export async function orDsError<T>(dir: string, body: () => Promise<T>): Promise<T> {
  try {
    return await body();
  } catch (error) {
    throw asDsError(error, dir);
  }
}

/** Failures of Node's own file calls, in the library's form. */
function asDsError(error: unknown, dir: string): unknown {
  const { code, syscall, path, message } = error as NodeJS.ErrnoException;
  if (error instanceof DsError || !syscall) return error;
  return new DsError({
    code: 'DS_IO',
    op: `${syscall} ${path ?? dir}`,
    expected: 'a folder that checkpoints can be written to',
    got: message,
    hint: code === 'ENOSPC' ? 'Free space on this file system, or choose another folder.' : '',
    cause: error,
  });
}

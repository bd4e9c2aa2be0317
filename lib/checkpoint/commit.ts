// Publishes a checkpoint atomically: whole or not at all, if the process or host dies at any time.
//
// A save of tag T in folder D goes through these states, and each rename is atomic:
//
//   1. D/.save-<owner> claims the next names and marks a running save: claim.ts.
//   2. D/.tmp-T-<owner> is filled; its files and then the folder itself are synced to disk.
//   3. If D/T is a checkpoint: D/T is renamed to D/.old-T-<owner>~0.
//   4. D/.tmp-T-<owner> is renamed to D/T if D/T does not exist, and D is synced.
//      If another save published the same tag meanwhile, 3 and 4 are repeated: the last save
//      wins.
//   5. D/.old-T-<owner>~0 is deleted.
//   6. `latest` is replaced: written as D/.latest-<owner>, synced, renamed, D synced.
//   7. Expired tags are renamed to D/.gone-T-<owner>, then deleted: retain().
//   8. The claim is deleted.
//
// A death in 2 leaves the old D/T. Between 3 and 4 it leaves the old checkpoint under its .old
// name, where a reader finds it (see find()), and the next save moves it back. After 4 it leaves
// the new checkpoint. `latest` always names an existing checkpoint. The next save deletes leftovers
// of a dead save. Only files in a manifest are deleted (deletable-files.ts): a save fails if other
// files are in its way.
import { lstat, mkdir, readdir, rename, stat, unlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';

import { DsError } from '../errors.js';
import { renameExclusive, syncPath } from '../runtime/file.js';
import { Claim, clearDead } from './claim.js';
import { isDraftFile, removeCheckpoint, removeOwn, requireReplaceable } from './deletable-files.js';
import { findLatest, LATEST, listTags, requireLatestReplaceable } from './directory.js';
import { ifThere, orDsError } from './file-error.js';
import { makeFolder } from './make-folder.js';
import { readManifest } from './manifest.js';

/** ".tmp-<tag>-<owner>", ".old-<tag>-<owner>~<attempt>", ".gone-<tag>-<owner>". */
const LEFTOVER = /^\.(tmp|old|gone)-(.+)-([0-9a-f]{32})(?:~(\d+))?$/;

/** Maximum number of concurrent saves of the same tag between the two renames. */
const MAX_ATTEMPTS = 100;

/** Part of the native library's message for ENOENT. */
const NOT_FOUND = '(errno 2)';

/** A running save, on the rank that publishes it. */
export interface Draft {
  readonly dir: string;
  readonly tag: string;
  /** The folder to fill. */
  readonly folder: string;
  readonly claim: Claim;
}

/**
 * Creates an empty folder for `dir`/`tag`, and `dir` if it is missing. Deletes leftovers of dead
 * saves. Throws DS_IO if the folder cannot be written to.
 */
export async function begin(dir: string, tag: string): Promise<Draft> {
  return orDsError(dir, async () => {
    await makeFolder(dir);
    await clearFolder(dir);
    const claim = await Claim.take(dir);
    const folder = join(dir, `.tmp-${tag}-${claim.owner}`);
    try {
      await mkdir(folder);
      return { dir, tag, folder, claim };
    } catch (error) {
      await claim.release();
      throw error;
    }
  });
}

/** Deletes leftovers of dead saves and exports in `dir`. */
export async function clearFolder(dir: string): Promise<void> {
  await clearDead(dir, (owner) => clearOwner(dir, owner));
}

/**
 * Throws DS_CHECKPOINT with their names if publish() would have to delete files that belong to no
 * checkpoint. Throws DS_IO if the folder cannot be read.
 */
export async function requireRoom(dir: string, tag: string, saveLatest: boolean): Promise<void> {
  await orDsError(dir, async () => {
    await requireReplaceable(join(dir, tag));
    if (saveLatest) await requireLatestReplaceable(dir);
  });
}

/**
 * Renames the filled draft to `dir`/`tag`; with `saveLatest`, `latest` then names it. Throws DS_IO,
 * and DS_CHECKPOINT if other files are in the way. finish() must follow.
 */
export async function publish(draft: Draft, saveLatest: boolean): Promise<void> {
  const { dir, folder } = draft;
  await orDsError(dir, async () => {
    await syncPath(folder);
    for (const old of await replace(draft)) await removeCheckpoint(old);
    if (saveLatest) await pointLatest(draft);
  });
}

/**
 * Ends a save: deletes an unpublished draft, and moves back or deletes checkpoints that were set
 * aside. Never rejects: the next save clears leftovers by the claim.
 */
export async function finish({ dir, claim }: Draft): Promise<void> {
  const isClear = await clearOwner(dir, claim.owner).catch(() => false);
  if (isClear) await claim.release();
  else await claim.leave();
}

/**
 * Deletes all except the newest `keep` checkpoints of the draft's folder, by save time. Incomplete
 * checkpoints are neither deleted nor counted. The draft's own tag and the tag in `latest` always
 * stay. A checkpoint with other files stays, with a warning that names them. Throws DS_IO if a
 * folder cannot be read or deleted.
 */
export async function retain(draft: Draft, keep: number): Promise<void> {
  const { dir } = draft;
  const checkpoints: { tag: string; savedAt: number }[] = [];
  for (const tag of await listTags(dir)) {
    const manifest = await readManifest(join(dir, tag)).catch(() => null);
    if (manifest) checkpoints.push({ tag, savedAt: manifest.savedAt });
  }
  const latest = await findLatest(dir);
  const old = checkpoints
    .map((item, index) => ({ ...item, place: index }))
    .sort((a, b) => b.savedAt - a.savedAt || b.place - a.place)
    .slice(keep)
    .map(({ tag }) => tag)
    .filter((tag) => tag !== latest && tag !== draft.tag);
  for (const tag of old) await removeTag(draft, tag).catch(warnOfOthers);
}

/** Warns instead of throwing, because the new checkpoint is complete. */
function warnOfOthers(error: unknown): void {
  if (!(error instanceof DsError) || error.code !== 'DS_CHECKPOINT') throw error;
  const text = `keepLast did not delete a checkpoint. ${error.message}`;
  process.emitWarning(text, { type: 'DsWarning', code: 'DS_CHECKPOINT' });
}

/**
 * Deletes the checkpoint `dir`/`tag` atomically, so readers never see a part of it. Throws
 * DS_CHECKPOINT if it contains other files, or is not a checkpoint.
 */
async function removeTag({ dir, claim }: Draft, tag: string): Promise<void> {
  const aside = join(dir, `.gone-${tag}-${claim.owner}`);
  await orDsError(dir, async () => {
    if (await setAside(join(dir, tag), aside)) await removeCheckpoint(aside);
  });
}

/** Renames the draft to its final path. Returns the new paths of the replaced checkpoints. */
async function replace({ dir, tag, folder, claim }: Draft): Promise<string[]> {
  const final = join(dir, tag);
  const olds: string[] = [];
  try {
    for (let attempt = 0; attempt < MAX_ATTEMPTS; ++attempt) {
      const old = join(dir, `.old-${tag}-${claim.owner}~${attempt}`);
      if (await setAside(final, old)) olds.push(old);
      if (!(await renameExclusive(folder, final))) continue;
      await syncPath(dir);
      return olds;
    }
  } catch (error) {
    const last = olds.at(-1);
    if (last) await renameExclusive(last, final).catch(() => undefined);
    throw error;
  }
  throw new DsError({
    code: 'DS_CHECKPOINT',
    op: final,
    expected: 'only one program that saves this tag',
    got: `${MAX_ATTEMPTS} saves of this tag by other programs`,
    hint: 'Let each program save to its own folder, or under its own tags.',
  });
}

/**
 * Moves the checkpoint `final` to the free name `aside`. Returns false if it does not exist. Throws
 * DS_CHECKPOINT for other files, which stay.
 */
async function setAside(final: string, aside: string): Promise<boolean> {
  if (!(await requireReplaceable(final))) return false;
  const moved = await renameExclusive(final, aside).catch((error: DsError) => {
    if (error.got?.includes(NOT_FOUND)) return false; // Another save has moved it.
    throw error;
  });
  if (!moved) return false;
  try {
    await requireReplaceable(aside, final); // Files may appear between the check and the rename.
    return true;
  } catch (error) {
    await renameExclusive(aside, final);
    throw error;
  }
}

async function pointLatest({ dir, tag, claim }: Draft): Promise<void> {
  const temporary = join(dir, `.latest-${claim.owner}`);
  try {
    await writeFile(temporary, tag, { flag: 'wx' });
    await syncPath(temporary);
    await requireLatestReplaceable(dir);
    await rename(temporary, join(dir, LATEST));
  } catch (error) {
    await unlink(temporary).catch(() => undefined);
    throw error;
  }
  await syncPath(dir);
}

/**
 * Returns the folder of `tag`: `dir`/`tag`, or the folder that a save left when it died between its
 * two renames. Returns null if there is none. Changes nothing. Throws DS_IO if `dir` cannot be
 * read.
 */
export async function find(dir: string, tag: string): Promise<string | null> {
  const final = join(dir, tag);
  if (await ifThere(final, () => stat(final))) return final;
  const olds = leftovers((await ifThere(dir, () => readdir(dir))) ?? [])
    .filter((leftover) => leftover.kind === 'old' && leftover.tag === tag)
    .sort((a, b) => b.attempt - a.attempt);
  return olds[0] ? join(dir, olds[0].name) : null;
}

/**
 * Moves back checkpoints that a save set aside, and deletes its drafts. Returns whether nothing is
 * left.
 */
async function clearOwner(dir: string, owner: string): Promise<boolean> {
  const ofOwner = async () =>
    leftovers(await readdir(dir)).filter((leftover) => leftover.owner === owner);
  for (const { kind, name, tag } of (await ofOwner()).sort((a, b) => b.attempt - a.attempt)) {
    const path = join(dir, name);
    if (kind === 'tmp') await removeDraft(path);
    else if (kind === 'gone') await removeCheckpoint(path);
    else await returnOld(path, join(dir, tag));
  }
  const latest = join(dir, `.latest-${owner}`);
  const status = await lstat(latest).catch(() => null);
  if (status?.isFile()) await unlink(latest);
  return (await ofOwner()).length === 0;
}

/**
 * Deletes a draft. Another save may have written its own draft inside, so leftovers of dead saves
 * there are deleted too.
 */
async function removeDraft(path: string): Promise<void> {
  const status = await lstat(path).catch(() => null);
  if (status?.isDirectory()) await clearFolder(path);
  await removeOwn(path, isDraftFile);
}

/** Moves a checkpoint that was set aside back, or deletes it if a newer one has its name. */
async function returnOld(old: string, final: string): Promise<void> {
  if (await renameExclusive(old, final)) return;
  if (await requireReplaceable(final).catch(() => false)) await removeCheckpoint(old);
}

interface Leftover {
  name: string;
  kind: string;
  tag: string;
  owner: string;
  attempt: number;
}

function leftovers(names: readonly string[]): Leftover[] {
  return names.flatMap((name) => {
    const [, kind = '', tag = '', owner = '', attempt = 0] = LEFTOVER.exec(name) ?? [];
    return kind ? [{ name, kind, tag, owner, attempt: Number(attempt) }] : [];
  });
}

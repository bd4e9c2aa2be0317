// Publishes a checkpoint atomically: even if the process or the host dies, the checkpoint exists as
// a whole or not at all.
//
// A save of tag T in folder D goes through these steps. Each rename is atomic.
//
//   1. Create D/.save-<owner>. It reserves the names below and marks a running save:
//      claim.ts.
//   2. Fill D/.tmp-T-<owner>; sync its files, then the folder itself, to disk.
//   3. If D/T is a checkpoint, rename it to D/.old-T-<owner>~0.
//   4. If D/T does not exist, rename D/.tmp-T-<owner> to D/T, and sync D.
//      If another save has published T meanwhile, repeat 3 and 4: the last save wins.
//   5. Delete D/.old-T-<owner>~0.
//   6. Replace `latest`: write D/.latest-<owner>, sync it, rename it, sync D.
//   7. Rename expired tags to D/.gone-T-<owner>, then delete them: retain().
//   8. Delete the claim.
//
// If the save dies in step 2, D/T is unchanged. If it dies between 3 and 4, the old checkpoint has
// its .old name: readers find it there (find()), and the next save moves it back. After 4, D/T is
// the new checkpoint. `latest` always names an existing checkpoint. The next save deletes the
// leftovers of a dead save. A save deletes only files that a manifest lists (deletable-files.ts);
// it fails if other files are in its way.
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

/** Matches ".tmp-<tag>-<owner>", ".old-<tag>-<owner>~<attempt>" and ".gone-<tag>-<owner>". */
const LEFTOVER = /^\.(tmp|old|gone)-(.+)-([0-9a-f]{32})(?:~(\d+))?$/;

/** Maximum number of repetitions of steps 3 and 4, one for each concurrent save of the same tag. */
const MAX_ATTEMPTS = 100;

/** The part of the native library's message that identifies ENOENT. */
const NOT_FOUND = '(errno 2)';

/** A running save. Only the rank that publishes the checkpoint has it. */
export interface Draft {
  readonly dir: string;
  readonly tag: string;
  /** The hidden folder that the ranks fill. */
  readonly folder: string;
  readonly claim: Claim;
}

/**
 * Starts a save: creates an empty folder for `dir`/`tag`, and `dir` if it is missing, and deletes
 * leftovers of dead saves. finish() must follow. Throws DS_IO if `dir` is not writable.
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

/** Deletes leftovers of dead saves and dead exports in `dir`. */
export async function clearFolder(dir: string): Promise<void> {
  await clearDead(dir, (owner) => clearOwner(dir, owner));
}

/**
 * Throws DS_CHECKPOINT if files that belong to no checkpoint stand where publish() would write; the
 * error names them. Throws DS_IO if the folder cannot be read.
 */
export async function requireRoom(dir: string, tag: string, saveLatest: boolean): Promise<void> {
  await orDsError(dir, async () => {
    await requireReplaceable(join(dir, tag));
    if (saveLatest) await requireLatestReplaceable(dir);
  });
}

/**
 * Renames the filled draft to `dir`/`tag`. With `saveLatest`, `latest` names the tag afterwards.
 * finish() must follow. Throws DS_CHECKPOINT if other files are in the way, and DS_IO.
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
 * Ends a save: deletes an unpublished draft, and moves back or deletes the checkpoints that
 * publish() set aside. Never rejects: after a failure, the next save finds the leftovers by the
 * claim.
 */
export async function finish({ dir, claim }: Draft): Promise<void> {
  const isClear = await clearOwner(dir, claim.owner).catch(() => false);
  if (isClear) await claim.release();
  else await claim.leave();
}

/**
 * Deletes all checkpoints of the draft's folder except the newest `keep`, by save time.
 *
 * - Incomplete checkpoints are neither deleted nor counted.
 * - The draft's own tag and the tag in `latest` always stay.
 * - A checkpoint that contains other files stays; a warning names the files.
 *
 * Throws DS_IO if a folder cannot be read or deleted.
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

/** Emits a warning instead of an error, because the new checkpoint is complete. */
function warnOfOthers(error: unknown): void {
  if (!(error instanceof DsError) || error.code !== 'DS_CHECKPOINT') throw error;
  const text = `keepLast did not delete a checkpoint. ${error.message}`;
  process.emitWarning(text, { type: 'DsWarning', code: 'DS_CHECKPOINT' });
}

/**
 * Deletes the checkpoint `dir`/`tag` atomically, so that readers never see a part of it. Throws
 * DS_CHECKPOINT if it contains other files, or is not a checkpoint.
 */
async function removeTag({ dir, claim }: Draft, tag: string): Promise<void> {
  const aside = join(dir, `.gone-${tag}-${claim.owner}`);
  await orDsError(dir, async () => {
    if (await setAside(join(dir, tag), aside)) await removeCheckpoint(aside);
  });
}

/** Renames the draft to its final path. Returns the paths of the checkpoints that it set aside. */
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
 * Renames the checkpoint `final` to the free name `aside`. Returns false if `final` does not exist.
 * Throws DS_CHECKPOINT if `final` is not a checkpoint or contains other files; nothing is then
 * moved.
 */
async function setAside(final: string, aside: string): Promise<boolean> {
  if (!(await requireReplaceable(final))) return false;
  const moved = await renameExclusive(final, aside).catch((error: DsError) => {
    if (error.got?.includes(NOT_FOUND)) return false; // Another save has moved it.
    throw error;
  });
  if (!moved) return false;
  try {
    await requireReplaceable(aside, final); // A file may appear between the check and the rename.
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
 * Returns the folder of `tag`: `dir`/`tag`, or else the .old folder that a save left when it died
 * between its two renames. Returns null without such a folder. Changes nothing on disk. Throws
 * DS_IO if `dir` cannot be read.
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
 * Moves back the checkpoints that the save `owner` set aside, and deletes its drafts. Returns
 * whether all its folders are gone.
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
 * Deletes a draft folder. If another save wrote its own draft inside it, also deletes the leftovers
 * of dead saves there.
 */
async function removeDraft(path: string): Promise<void> {
  const status = await lstat(path).catch(() => null);
  if (status?.isDirectory()) await clearFolder(path);
  await removeOwn(path, isDraftFile);
}

/**
 * Moves a checkpoint that was set aside back to `final`. Deletes it if a newer checkpoint has the
 * name.
 */
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

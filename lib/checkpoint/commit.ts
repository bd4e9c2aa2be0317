// Making a checkpoint appear: whole or not at all, whenever the process or the machine dies.
//
// A save of tag T in folder D goes through these states, and each rename is atomic:
//
//   1. D/.save-<owner> claims what follows and says that the save lives: claim.ts.
//   2. D/.tmp-T-<owner> is filled; its files and then the folder itself are synced to disk.
//   3. Where D/T is a checkpoint already: D/T is renamed to D/.old-T-<owner>~0.
//   4. D/.tmp-T-<owner> is renamed to D/T unless something has appeared there, and D is synced.
//      Where another save has published the same tag meanwhile, 3 and 4 are done again: the last
//      one wins.
//   5. D/.old-T-<owner>~0 is deleted.
//   6. `latest` is replaced: written as D/.latest-<owner>, synced, renamed, D synced.
//   7. Tags that are no longer wanted are renamed to D/.gone-T-<owner>, then deleted: retention.ts.
//   8. The claim is deleted.
//
// A death in 2 leaves the old D/T; between 3 and 4 the old one under its .old name, where a reader
// finds it (see find()) and from where the next save moves it back; after 4 the new one. `latest`
// never names what is not there. What a dead save left behind is deleted by the next one. Only what
// a manifest names is ever deleted (ours.ts): a save fails where anything else is in its way.
import { lstat, mkdir, readdir, rename, stat, unlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';

import { DsError } from '../errors.js';
import { renameExclusive, syncPath } from '../runtime/file.js';
import { Claim, clearDead } from './claim.js';
import { LATEST, requireLatestReplaceable } from './directory.js';
import { ifThere, orDsError } from './file-error.js';
import { makeFolder } from './make-folder.js';
import { isDraftFile, removeCheckpoint, removeOwn, requireReplaceable } from './ours.js';

/** ".tmp-<tag>-<owner>", ".old-<tag>-<owner>~<turn>", ".gone-<tag>-<owner>". */
const LEFTOVER = /^\.(tmp|old|gone)-(.+)-([0-9a-f]{32})(?:~(\d+))?$/;

/** How often other saves of the same tag may come between the two renames. */
const TURNS = 100;

/** How the native side spells ENOENT. */
const NOT_FOUND = '(errno 2)';

/** A save under way, of the rank that makes it appear. */
export interface Draft {
  readonly dir: string;
  readonly tag: string;
  /** What is being filled. */
  readonly folder: string;
  readonly claim: Claim;
}

/**
 * Makes an empty folder for `dir`/`tag`, and `dir` where it is missing; deletes what dead saves
 * left. Throws DS_IO.
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

/** Deletes what dead saves and exports have left in `dir`. */
export async function clearFolder(dir: string): Promise<void> {
  await clearDead(dir, (owner) => clearOwner(dir, owner));
}

/**
 * Throws DS_CHECKPOINT where publish() would have to delete what is not ours, saying what it is;
 * DS_IO.
 */
export async function requireRoom(dir: string, tag: string, saveLatest: boolean): Promise<void> {
  await orDsError(dir, async () => {
    await requireReplaceable(join(dir, tag));
    if (saveLatest) await requireLatestReplaceable(dir);
  });
}

/**
 * The filled draft becomes `dir`/`tag`; then `latest` names it, if asked to. Throws DS_IO, and
 * DS_CHECKPOINT where something is in the way. finish() must follow.
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
 * Ends a save: a draft that was not published is deleted, and what stands aside moved back or
 * deleted. Never rejects: what stays is left to the next save, with the claim.
 */
export async function finish({ dir, claim }: Draft): Promise<void> {
  const isClear = await clearOwner(dir, claim.owner).catch(() => false);
  if (isClear) await claim.release();
  else await claim.leave();
}

/**
 * Deletes the checkpoint `dir`/`tag`, atomically: it is never seen in part. Throws DS_CHECKPOINT
 * where there is anything else in it or in its place.
 */
export async function removeTag({ dir, claim }: Draft, tag: string): Promise<void> {
  const aside = join(dir, `.gone-${tag}-${claim.owner}`);
  await orDsError(dir, async () => {
    if (await setAside(join(dir, tag), aside)) await removeCheckpoint(aside);
  });
}

/** Returns where the checkpoints have gone that were there before. */
async function replace({ dir, tag, folder, claim }: Draft): Promise<string[]> {
  const final = join(dir, tag);
  const olds: string[] = [];
  try {
    for (let turn = 0; turn < TURNS; ++turn) {
      const old = join(dir, `.old-${tag}-${claim.owner}~${turn}`);
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
    expected: 'to be the last to save this tag',
    got: `${TURNS} other saves of it`,
    hint: 'Let each program save to its own folder, or under its own tags.',
  });
}

/**
 * Moves the checkpoint `final` to the free name `aside`; false where there is none. Throws
 * DS_CHECKPOINT where anything else is there, which stays where it is.
 */
async function setAside(final: string, aside: string): Promise<boolean> {
  if (!(await requireReplaceable(final))) return false;
  const moved = await renameExclusive(final, aside).catch((error: DsError) => {
    if (error.got?.includes(NOT_FOUND)) return false; // Another save has moved it.
    throw error;
  });
  if (!moved) return false;
  try {
    await requireReplaceable(aside, final); // Files may have come between the look and the rename.
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
 * The folder of `tag`: `dir`/`tag`, or where a save that died between its two renames has put it.
 * Null when there is none. Changes nothing. Throws DS_IO.
 */
export async function find(dir: string, tag: string): Promise<string | null> {
  const final = join(dir, tag);
  if (await ifThere(final, () => stat(final))) return final;
  const olds = leftovers((await ifThere(dir, () => readdir(dir))) ?? [])
    .filter((one) => one.kind === 'old' && one.tag === tag)
    .sort((a, b) => b.turn - a.turn);
  return olds[0] ? join(dir, olds[0].name) : null;
}

/**
 * Moves back what a save had set aside, and deletes what it had begun. Returns whether nothing of
 * it is left.
 */
async function clearOwner(dir: string, owner: string): Promise<boolean> {
  const ofOwner = async () => leftovers(await readdir(dir)).filter((one) => one.owner === owner);
  for (const { kind, name, tag } of (await ofOwner()).sort((a, b) => b.turn - a.turn)) {
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

/** With what dead saves have left in it: a save may write its draft by others. */
async function removeDraft(path: string): Promise<void> {
  const status = await lstat(path).catch(() => null);
  if (status?.isDirectory()) await clearFolder(path);
  await removeOwn(path, isDraftFile);
}

/**
 * A checkpoint that was set aside is moved back, or deleted where a newer one has taken its place.
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
  turn: number;
}

function leftovers(names: readonly string[]): Leftover[] {
  return names.flatMap((name) => {
    const [, kind = '', tag = '', owner = '', turn = 0] = LEFTOVER.exec(name) ?? [];
    return kind ? [{ name, kind, tag, owner, turn: Number(turn) }] : [];
  });
}

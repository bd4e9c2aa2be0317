// Checks which files a save may delete: only files that a manifest of this library lists.
import type { Stats } from 'node:fs';
import { lstat, readdir, rmdir, unlink } from 'node:fs/promises';
import { join } from 'node:path';

import { DsError } from '../errors.js';
import { isCheckpointFile, MANIFEST } from './directory.js';
import { readManifest } from './manifest.js';
import { isExportFile } from './weight-files.js';

/** Maximum number of file names in an error. */
const SHOWN = 3;
/** Maximum number of checks of a path that other saves replace during the checks. */
const MAX_CHECKS = 100;

/** Returns whether a save or an export may create a file of this name in its draft. */
export function isDraftFile(name: string): boolean {
  return name === MANIFEST || isCheckpointFile(name) || isExportFile(name);
}

/**
 * Resolves with true if `path` is a checkpoint (a folder with a manifest and its files), false if
 * it does not exist. Rejects with DS_CHECKPOINT if it is anything else, or contains other files.
 * Errors use the path `called`.
 */
export async function requireReplaceable(path: string, called = path): Promise<boolean> {
  for (let check = 1; ; ++check) {
    const status = await statusOf(path);
    if (!status) return false;
    try {
      await requireCheckpoint(path, status, called);
      return true;
    } catch (error) {
      // Another save may have replaced it during the check: then its inode differs.
      const now = await statusOf(path);
      if (now?.ino === status.ino || check === MAX_CHECKS) throw error;
    }
  }
}

async function requireCheckpoint(path: string, status: Stats, called: string): Promise<void> {
  if (status.isSymbolicLink()) throw notOursError(called, 'a symbolic link');
  if (!status.isDirectory())
    throw notOursError(called, status.isFile() ? 'a file' : 'something else');
  const entries = (await readdir(path)).sort();
  const ownFileNames = await ownFiles(path);
  if (ownFileNames === null) {
    const what = entries.length === 0 ? 'an empty folder' : `a folder with ${formatNames(entries)}`;
    throw notOursError(called, what);
  }
  const others = entries.filter((name) => !ownFileNames.has(name));
  if (others.length > 0)
    throw notOursError(called, `a checkpoint with ${formatNames(others)} in it besides`);
}

/** Returns the status of a file or link; null if it does not exist. */
async function statusOf(path: string): Promise<Stats | null> {
  return lstat(path).catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') return null;
    throw error;
  });
}

/**
 * Deletes the files of `folder` that `isOwn` accepts, the manifest last, then the folder. Returns
 * false if other files remain; the folder then stays.
 */
export async function removeOwn(
  folder: string,
  isOwn: (name: string) => boolean,
): Promise<boolean> {
  const status = await lstat(folder).catch(() => null);
  if (!status) return true;
  if (!status.isDirectory()) return false;
  const names = (await readdir(folder, { withFileTypes: true }))
    .filter((entry) => entry.isFile() && isOwn(entry.name))
    .map(({ name }) => name);
  const last = (name: string): number => Number(name === MANIFEST);
  for (const name of names.sort((a, b) => last(a) - last(b))) await unlink(join(folder, name));
  return rmdir(folder).then(
    () => true,
    (error: NodeJS.ErrnoException) => {
      if (error.code === 'ENOTEMPTY' || error.code === 'EEXIST') return false;
      throw error;
    },
  );
}

/** Deletes the checkpoint in `folder`, that is, the files that its manifest lists. */
export async function removeCheckpoint(folder: string): Promise<void> {
  const ownFileNames = (await ownFiles(folder)) ?? new Set<string>();
  await removeOwn(folder, (name) => ownFileNames.has(name));
}

/**
 * Returns the names of the files in the manifest, and of the manifest; null without a valid
 * manifest.
 */
async function ownFiles(folder: string): Promise<Set<string> | null> {
  const manifest = await readManifest(folder).catch((error: unknown) => {
    if (error instanceof DsError && error.code === 'DS_CHECKPOINT') return null;
    throw error;
  });
  return manifest && new Set([MANIFEST, ...manifest.files.map(({ name }) => name)]);
}

function formatNames(names: readonly string[]): string {
  const more = names.length - SHOWN;
  return names.slice(0, SHOWN).join(', ') + (more > 0 ? ` and ${more} more` : '');
}

function notOursError(op: string, got: string): DsError {
  return new DsError({
    code: 'DS_CHECKPOINT',
    op,
    expected: 'nothing of this name, or a checkpoint of this library to replace',
    got,
    hint: 'No file was changed. Choose another tag or folder, or move it away.',
  });
}

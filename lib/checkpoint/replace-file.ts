// Writes small files atomically. Replaces only regular files.
import { randomUUID } from 'node:crypto';
import { lstat, rename, rm, writeFile } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';

import { DsError } from '../errors.js';
import { syncPath } from '../runtime/file.js';
import { orDsError } from './file-error.js';

/** Matches names of incomplete files of replaceBy(). If the process dies, such a file remains. */
const DRAFT = /^\..+\.[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;

/** Returns whether a replaceBy() that died may have left a file of this name. */
export const isUnfinishedFile = (name: string): boolean => DRAFT.test(name);

/** Writes `data` to `path`; see replaceBy(). */
export const replaceFile = (path: string, data: string | Uint8Array): Promise<void> =>
  replaceBy(path, (draft) => writeFile(draft, data, { flag: 'wx' }));

/**
 * Lets `write` write a new file at the path `draft`, then renames the file to `path`. After a
 * crash, `path` is the complete old or new file. Throws DS_CHECKPOINT if `path` exists but is not a
 * regular file, DS_IO if a file call fails.
 */
export async function replaceBy(
  path: string,
  write: (draft: string) => Promise<void>,
): Promise<void> {
  const draft = join(dirname(path), `.${basename(path)}.${randomUUID()}`);
  await orDsError(path, async () => {
    await requireFileOrNothing(path);
    try {
      await write(draft);
      await syncPath(draft);
      await rename(draft, path);
    } catch (error) {
      await rm(draft, { force: true });
      throw error;
    }
  });
}

/** Renames the file `from` to `path`. Throws as replaceBy() does. */
export async function moveFile(from: string, path: string): Promise<void> {
  await orDsError(path, async () => {
    await requireFileOrNothing(path);
    await rename(from, path);
  });
}

async function requireFileOrNothing(path: string): Promise<void> {
  // Failures other than a missing file are ignored here: the write or the rename reports them.
  const status = await lstat(path).catch(() => null);
  if (!status || status.isFile()) return;
  throw new DsError({
    code: 'DS_CHECKPOINT',
    op: path,
    expected: 'nothing of this name, or a file to replace',
    got: status.isSymbolicLink() ? 'a symbolic link' : 'a folder or a device',
    hint: 'No file was changed. Choose another folder, or move it away.',
  });
}

// Creates folders and syncs them to disk.
import { randomBytes } from 'node:crypto';
import { mkdir, stat, unlink, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';

import { syncPath } from '../runtime/file.js';
import { orDsError } from './file-error.js';

/**
 * Creates a folder and its parents, as mkdir -p does, even if other processes create the same
 * folders meanwhile. Syncs each new folder's parent. Rejects as mkdir does, or with DS_IO.
 *
 * Node's own `recursive` option cannot be used: it repeats for ever if an existing folder rejects
 * new entries with ENOENT, as /proc and automounted folders do.
 */
export async function makeFolder(path: string): Promise<void> {
  const failure = await mkdir(path).then(
    () => null,
    (error: NodeJS.ErrnoException) => error,
  );
  if (!failure) return syncPath(dirname(path));
  if (await isFolder(path)) return;
  const parent = dirname(path);
  if (failure.code !== 'ENOENT' || parent === path) throw failure;
  // Another process may have created the parent meanwhile.
  if (!(await isFolder(parent))) await makeFolder(parent);
  await mkdir(path).catch(async (error: NodeJS.ErrnoException) => {
    if (!(await isFolder(path))) throw error;
  });
  await syncPath(parent);
}

/**
 * Creates the folder, then creates and deletes a file in it: a save calls it before there is data,
 * to detect a read-only folder early. Rejects with DS_IO.
 */
export async function requireWritable(path: string): Promise<void> {
  await orDsError(path, async () => {
    await makeFolder(path);
    const probe = join(path, `.writable-${randomBytes(6).toString('hex')}`);
    await writeFile(probe, '', { flag: 'wx' });
    await unlink(probe);
  });
}

async function isFolder(path: string): Promise<boolean> {
  return stat(path).then(
    (status) => status.isDirectory(),
    () => false,
  );
}

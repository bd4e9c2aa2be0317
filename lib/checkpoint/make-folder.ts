// A folder and those above it, on disk when it returns, with an end on every file system.
import { randomBytes } from 'node:crypto';
import { mkdir, stat, unlink, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';

import { syncPath } from '../runtime/file.js';
import { orDsError } from './file-error.js';

/**
 * mkdir -p, also where others make the same folders at the same time; each folder that is made is
 * synced into the one above it. Rejects as mkdir does, or with DS_IO. Node's own `recursive`
 * retries for ever where a folder that exists takes no new ones and says ENOENT, as /proc and
 * automounted folders do.
 */
export async function makeFolder(path: string): Promise<void> {
  const failure = await mkdir(path).then(
    () => null,
    (error: NodeJS.ErrnoException) => error,
  );
  if (!failure) return syncPath(dirname(path));
  if (failure.code === 'EEXIST' && (await isFolder(path))) return;
  const parent = dirname(path);
  if (failure.code !== 'ENOENT' || parent === path) throw failure;
  // Somebody may have made it since.
  if (!(await isFolder(parent))) await makeFolder(parent);
  await mkdir(path).catch(async (error: NodeJS.ErrnoException) => {
    if (error.code !== 'EEXIST' || !(await isFolder(path))) throw error;
  });
  await syncPath(parent);
}

/**
 * Makes the folder and a file in it, which is deleted again: what cannot be written is known before
 * there is something to save. Rejects with DS_IO.
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

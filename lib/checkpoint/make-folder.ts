// A folder and those above it, on disk when it returns, with an end on every file system.
import { mkdir, stat } from 'node:fs/promises';
import { dirname } from 'node:path';

import { syncPath } from '../runtime/file.js';

/**
 * mkdir -p; each folder that is made is synced into the one above it. Rejects as mkdir does, or
 * with DS_IO. Node's own `recursive` retries for ever where a folder that exists takes no new ones
 * and says ENOENT, as /proc and automounted folders do.
 */
export async function makeFolder(path: string): Promise<void> {
  const failure = await mkdir(path).then(
    () => null,
    (error: NodeJS.ErrnoException) => error,
  );
  if (!failure) return syncPath(dirname(path));
  if (failure.code === 'EEXIST' && (await isFolder(path))) return;
  const parent = dirname(path);
  if (failure.code !== 'ENOENT' || parent === path || (await isFolder(parent))) throw failure;
  await makeFolder(parent);
  await mkdir(path).catch(async (error: NodeJS.ErrnoException) => {
    if (error.code !== 'EEXIST' || !(await isFolder(path))) throw error;
  });
  await syncPath(parent);
}

async function isFolder(path: string): Promise<boolean> {
  return stat(path).then(
    (status) => status.isDirectory(),
    () => false,
  );
}

// Folders that are made while the caller waits, with an end on every file system.
import { mkdirSync, statSync } from 'node:fs';
import { dirname } from 'node:path';

/**
 * mkdir -p, also where other processes make the same folders at the same time. Throws as
 * mkdirSync() does. Node's own `recursive` retries for ever where a folder that exists takes no new
 * ones and says ENOENT, as /proc and automounted folders do.
 */
export function makeFolderNow(path: string): void {
  const parent = dirname(path);
  try {
    mkdirSync(path);
    return;
  } catch (error) {
    if (isFolder(path)) return;
    const isMissing = (error as NodeJS.ErrnoException).code === 'ENOENT';
    if (!isMissing || parent === path) throw error;
  }
  // Somebody may have made it since.
  if (!isFolder(parent)) makeFolderNow(parent);
  try {
    mkdirSync(path);
  } catch (error) {
    if (!isFolder(path)) throw error; // Else somebody was faster.
  }
}

function isFolder(path: string): boolean {
  try {
    return statSync(path).isDirectory();
  } catch {
    return false;
  }
}

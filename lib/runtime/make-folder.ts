// Creates folders synchronously, without endless retries on special file systems.

import { mkdirSync, statSync } from 'node:fs';
import { dirname } from 'node:path';
import { errorCode } from './system-error.js';

/**
 * Creates a folder and its missing parents, also if other processes create them at the same time.
 * Throws as mkdirSync() does. Node's own `recursive` retries forever in a folder that exists but
 * reports ENOENT for new folders, as /proc and automounted folders do.
 */
export function makeFolderNow(path: string): void {
  const parent = dirname(path);
  try {
    mkdirSync(path);
    return;
  } catch (error) {
    if (isFolder(path)) return;
    const isMissing = errorCode(error) === 'ENOENT';
    if (!isMissing || parent === path) throw error;
  }
  // Another process may have created the folder in the meantime.
  if (!isFolder(parent)) makeFolderNow(parent);
  try {
    mkdirSync(path);
  } catch (error) {
    if (!isFolder(path)) throw error; // Another process may have made the folder.
  }
}

function isFolder(path: string): boolean {
  try {
    return statSync(path).isDirectory();
  } catch {
    return false;
  }
}

// The disk of a folder, and its free space.
import { existsSync, statfsSync, statSync } from 'node:fs';
import { dirname } from 'node:path';
import { absolutePath } from './system-error.js';

export interface Disk {
  /** Identifies the disk: equal for all folders of it on this machine. */
  disk: string;
  /** Bytes that this process may write; a very large number if unknown. */
  free: number;
}

/**
 * Returns the disk of the folder, or of its first existing parent. Opening the folder reports why
 * it cannot be created.
 */
export function diskOf(folder: string): Disk {
  let path = absolutePath(folder);
  while (!existsSync(path) && dirname(path) !== path) path = dirname(path);
  try {
    const { bavail, bfree, blocks, bsize } = statfsSync(path);
    // The superuser may also use reserved blocks.
    const free = process.getuid?.() === 0 ? bfree : bavail;
    // Some file systems have no sizes.
    const bytes = blocks === 0 ? Number.MAX_SAFE_INTEGER : free * bsize;
    return { disk: String(statSync(path).dev), free: bytes };
  } catch {
    return { disk: path, free: Number.MAX_SAFE_INTEGER };
  }
}

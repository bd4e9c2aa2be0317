// The disk that a folder is on, and what is free there.
import { existsSync, statfsSync, statSync } from 'node:fs';
import { dirname, resolve } from 'node:path';

export interface Disk {
  /** The same for folders of one disk, as this machine sees it. */
  disk: string;
  /** Bytes that this process may fill; more than any disk has where nobody can tell. */
  free: number;
}

/**
 * Of the folder, or of the one in which it will be made; whoever opens it says why that cannot be.
 */
export function diskOf(folder: string): Disk {
  let path = resolve(folder);
  while (!existsSync(path) && dirname(path) !== path) path = dirname(path);
  try {
    const { bavail, bfree, blocks, bsize } = statfsSync(path);
    // The superuser may also fill what is reserved.
    const free = process.getuid?.() === 0 ? bfree : bavail;
    // Some file systems have no sizes.
    const bytes = blocks === 0 ? Number.MAX_SAFE_INTEGER : free * bsize;
    return { disk: String(statSync(path).dev), free: bytes };
  } catch {
    return { disk: path, free: Number.MAX_SAFE_INTEGER };
  }
}

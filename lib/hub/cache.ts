// Paths in the cache of Python's huggingface_hub:
// models--ORG--NAME/{refs,blobs,snapshots,.no_exist}.
//
//   refs/main                    the commit of a branch or tag
//   blobs/HASH                   a file, named by its hash
//   snapshots/COMMIT/FILE        a relative link to ../../blobs/HASH
//   .no_exist/COMMIT/FILE        an empty file: the commit does not have this file
import { existsSync, readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';

import { isCommit } from './names.js';

/** Paths and states of one model in the cache. */
export class CachedModel {
  readonly folder: string;

  constructor(
    /** Folder of the whole cache. */
    readonly cache: string,
    readonly name: string,
  ) {
    this.folder = join(cache, toFolderName(name));
  }

  /** Returns the path of the file with the commit of a branch or tag. */
  refPath(revision: string): string {
    return join(this.folder, 'refs', revision);
  }

  blobPath(hash: string): string {
    return join(this.folder, 'blobs', hash);
  }

  snapshotFolder(commit: string): string {
    return join(this.folder, 'snapshots', commit);
  }

  absentPath(commit: string, file: string): string {
    return join(this.folder, '.no_exist', commit, file);
  }

  /** Returns the path of a blob's lock, the same as Python's. */
  lockPath(hash: string): string {
    return join(this.cache, '.locks', toFolderName(this.name), `${hash}.lock`);
  }

  /** Returns the commit of a revision from the files in refs; null if unknown. */
  readCommit(revision: string): string | null {
    if (isCommit(revision)) return revision;
    try {
      const path = this.refPath(revision);
      if (statSync(path).size > 64) return null;
      const commit = readFileSync(path, 'utf8').trim();
      return isCommit(commit) ? commit : null;
    } catch {
      return null;
    }
  }

  /** Returns whether the snapshot has the file. A dangling link counts as missing. */
  has(commit: string, file: string): boolean {
    return existsSync(join(this.snapshotFolder(commit), file));
  }

  /** Returns whether the snapshot has the file, or .no_exist marks it as absent. */
  hasOrLacks(commit: string, file: string): boolean {
    return this.has(commit, file) || existsSync(this.absentPath(commit, file));
  }
}

export const toFolderName = (name: string): string => `models--${name.replaceAll('/', '--')}`;

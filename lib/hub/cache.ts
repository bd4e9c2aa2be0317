// The cache of Python's huggingface_hub: models--ORG--NAME/{refs,blobs,snapshots,.no_exist}.
//
//   refs/main                    the commit of a branch or tag
//   blobs/HASH                   a file by its hash
//   snapshots/COMMIT/FILE        a relative link to ../../blobs/HASH
//   .no_exist/COMMIT/FILE        an empty file: the commit has no such file
import { existsSync, readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';

import { isCommit } from './names.js';

/** The folders of one model. */
export class CachedModel {
  readonly folder: string;

  constructor(
    /** The folder of the cache. */
    readonly cache: string,
    readonly name: string,
  ) {
    this.folder = join(cache, folderName(name));
  }

  /** Where the commit of a branch or tag is written. */
  ref(revision: string): string {
    return join(this.folder, 'refs', revision);
  }

  blob(hash: string): string {
    return join(this.folder, 'blobs', hash);
  }

  snapshot(commit: string): string {
    return join(this.folder, 'snapshots', commit);
  }

  absent(commit: string, file: string): string {
    return join(this.folder, '.no_exist', commit, file);
  }

  /** The lock of a blob, at Python's place. */
  lock(hash: string): string {
    return join(this.cache, '.locks', folderName(this.name), `${hash}.lock`);
  }

  /** Returns the commit of a revision by the files in refs, else null. */
  commitOf(revision: string): string | null {
    if (isCommit(revision)) return revision;
    try {
      const path = this.ref(revision);
      if (statSync(path).size > 64) return null;
      const commit = readFileSync(path, 'utf8').trim();
      return isCommit(commit) ? commit : null;
    } catch {
      return null;
    }
  }

  /** Returns true if the snapshot has the file. A link to nothing counts as no file. */
  has(commit: string, file: string): boolean {
    return existsSync(join(this.snapshot(commit), file));
  }

  /** Returns true if the snapshot has the file, or .no_exist marks it as absent. */
  knows(commit: string, file: string): boolean {
    return this.has(commit, file) || existsSync(this.absent(commit, file));
  }
}

export const folderName = (name: string): string => `models--${name.replaceAll('/', '--')}`;

// Finds the folder of a model by a path or a name on the hub (ORG/NAME or NAME). An existing path
// takes precedence.

import { DsError } from '../errors.js';
import { argumentError } from '../runtime/input-errors.js';
import { CachedModel } from './cache.js';
import { type FileSet, listMissingFiles } from './choice.js';
import { readHubSettings } from './environment.js';
import { isRemote, requireRevision } from './names.js';
import { pullWith } from './pull.js';

/** Options of functions that accept a name on the hub. */
export interface RevisionOptions {
  /** Branch, tag or commit. Default: "main". */
  revision?: string;
}

/** The files that the caller needs, and the revision. */
interface LocalFolderOptions {
  readonly need: FileSet;
  readonly revision?: string | undefined;
}

/**
 * Returns `location` if it is a path. Otherwise downloads the model and resolves with its folder in
 * the cache. Rejects with DS_ARGUMENT for a revision of a path, and as pull() does.
 */
export async function findOrPullFolder(
  op: string,
  location: string,
  { need, revision }: LocalFolderOptions,
): Promise<string> {
  if (isPath(op, location, revision)) return location;
  return pullWith(readHubSettings(), location, { files: need, revision });
}

/**
 * Returns the folder as findOrPullFolder() does, but reads only the cache. Throws DS_HUB if the
 * model is not in the cache.
 */
export function findCachedFolder(
  op: string,
  location: string,
  { need, revision }: LocalFolderOptions,
): string {
  if (isPath(op, location, revision)) return location;
  const { cache } = readHubSettings();
  const model = new CachedModel(cache, location);
  const commit = model.readCommit(revision ?? 'main');
  if (commit !== null && listMissingFiles(model, commit, need).length === 0) {
    return model.snapshotFolder(commit);
  }
  const options = revision === undefined ? '' : `, { revision: ${JSON.stringify(revision)} }`;
  throw new DsError({
    code: 'DS_HUB',
    op,
    expected: `a folder, or a model in the cache ${cache}`,
    got: JSON.stringify(location),
    hint: `It is synchronous and downloads nothing: call await hub.pull(${JSON.stringify(location)}${options}) first.`,
  });
}

/**
 * Returns whether `location` is a path. Throws DS_ARGUMENT for an invalid revision, and for the
 * revision of a path.
 */
function isPath(op: string, location: string, revision: string | undefined): boolean {
  if (revision !== undefined) requireRevision(`${op} revision`, revision);
  if (isRemote(location)) return false;
  if (revision === undefined) return true;
  throw argumentError(
    `${op} revision`,
    'no revision for a path, which has only one',
    `${JSON.stringify(revision)} of ${JSON.stringify(location)}`,
  );
}

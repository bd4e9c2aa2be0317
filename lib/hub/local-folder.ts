// Turns the name of a model into its folder. An existing path always wins, and other paths than
// ORG/NAME or NAME are never looked up.

import { DsError } from '../errors.js';
import { argumentError } from '../runtime/input-errors.js';
import type { OptionNames } from '../runtime/options.js';
import { CachedModel } from './cache.js';
import { type FileSet, missingFiles } from './choice.js';
import { hubSettings } from './environment.js';
import { isRemote, requireRevision } from './names.js';
import { pullWith } from './pull.js';

/** Options of functions that take a name on the hub. */
export interface RevisionOptions {
  /** Branch, tag or commit. Default: "main". */
  revision?: string;
}

export const REVISION: OptionNames<RevisionOptions> = { revision: true };

/** The needed files of a model, and its revision. */
export interface LocalFolderOptions {
  readonly need: FileSet;
  readonly revision?: string | undefined;
}

/**
 * Returns `place` if it is a path; downloads a name and resolves with its folder in the cache.
 * Rejects with DS_ARGUMENT for a revision of a path, and as pull() does.
 */
export async function localFolder(
  op: string,
  place: string,
  { need, revision }: LocalFolderOptions,
): Promise<string> {
  if (isPath(op, place, revision)) return place;
  return pullWith(hubSettings(), place, { files: need, revision });
}

/** As localFolder(), but reads only the cache. Throws DS_HUB if the cache lacks the name. */
export function cachedFolder(
  op: string,
  place: string,
  { need, revision }: LocalFolderOptions,
): string {
  if (isPath(op, place, revision)) return place;
  const { cache } = hubSettings();
  const model = new CachedModel(cache, place);
  const commit = model.commitOf(revision ?? 'main');
  if (commit !== null && missingFiles(model, commit, need).length === 0) {
    return model.snapshot(commit);
  }
  const options = revision === undefined ? '' : `, { revision: ${JSON.stringify(revision)} }`;
  throw new DsError({
    code: 'DS_HUB',
    op,
    expected: `a folder, or a model in the cache ${cache}`,
    got: JSON.stringify(place),
    hint: `It is synchronous and downloads nothing: call await hub.pull(${JSON.stringify(place)}${options}) first.`,
  });
}

/** Throws DS_ARGUMENT for an invalid revision, and for the revision of a path. */
function isPath(op: string, place: string, revision: string | undefined): boolean {
  if (revision !== undefined) requireRevision(`${op} revision`, revision);
  if (isRemote(place)) return false;
  if (revision === undefined) return true;
  throw argumentError(
    `${op} revision`,
    'no revision for a path, which has only one',
    `${JSON.stringify(revision)} of ${JSON.stringify(place)}`,
  );
}

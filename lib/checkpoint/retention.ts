// Retention: deletes old checkpoints of a folder.
import { join } from 'node:path';

import { DsError } from '../errors.js';
import { type Draft, removeTag } from './commit.js';
import { findLatest, listTags } from './directory.js';
import { readManifest } from './manifest.js';

/**
 * Deletes all except the newest `keep` checkpoints of the draft's folder, by save time. Incomplete
 * checkpoints are neither deleted nor counted. The draft's own tag and the tag in `latest` always
 * stay. A checkpoint with other files stays, with a warning that names them. Throws DS_IO.
 */
export async function retain(draft: Draft, keep: number): Promise<void> {
  const { dir } = draft;
  const checkpoints: { tag: string; savedAt: number }[] = [];
  for (const tag of await listTags(dir)) {
    const manifest = await readManifest(join(dir, tag)).catch(() => null);
    if (manifest) checkpoints.push({ tag, savedAt: manifest.savedAt });
  }
  const latest = await findLatest(dir);
  const old = checkpoints
    .map((item, index) => ({ ...item, place: index }))
    .sort((a, b) => b.savedAt - a.savedAt || b.place - a.place)
    .slice(keep)
    .map(({ tag }) => tag)
    .filter((tag) => tag !== latest && tag !== draft.tag);
  for (const tag of old) await removeTag(draft, tag).catch(warnOfOthers);
}

/** Warns of a failed deletion: the new checkpoint is complete. */
function warnOfOthers(error: unknown): void {
  if (!(error instanceof DsError) || error.code !== 'DS_CHECKPOINT') throw error;
  const text = `keepLast leaves a checkpoint as it is. ${error.message}`;
  process.emitWarning(text, { type: 'DsWarning', code: 'DS_CHECKPOINT' });
}

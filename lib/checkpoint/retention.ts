// Retention: the newest checkpoints of a folder stay, older ones go.
import { join } from 'node:path';

import { removeTag } from './commit.js';
import { findLatest, listTags } from './directory.js';
import { readManifest } from './manifest.js';

/**
 * Deletes all but the newest `keep` checkpoints of `dir`, by the time of their saves. What is not a complete
 * checkpoint is not touched and not counted; `current` and what `latest` names stay in any case. Returns the deleted tags.
 */
export async function retain(dir: string, keep: number, current: string): Promise<string[]> {
  const found: { tag: string; savedAt: number }[] = [];
  for (const tag of await listTags(dir)) {
    const manifest = await readManifest(join(dir, tag)).catch(() => null);
    if (manifest) found.push({ tag, savedAt: manifest.savedAt });
  }
  const latest = await findLatest(dir);
  const old = found
    .map((one, place) => ({ ...one, place }))
    .sort((a, b) => b.savedAt - a.savedAt || b.place - a.place)
    .slice(keep)
    .map(({ tag }) => tag)
    .filter((tag) => tag !== latest && tag !== current);
  for (const tag of old) await removeTag(dir, tag);
  return old;
}

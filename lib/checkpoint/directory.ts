// Names inside a checkpoint folder: DeepSpeed's layout with safetensors payloads.
//
//   <dir>/latest                                                     text: the tag to resume from
//   <dir>/<tag>/mp_rank_00_model_states.safetensors                  weights and buffers
//   <dir>/<tag>/zero_pp_rank_0_mp_rank_00_optim_states.safetensors   master weights, moments
//   <dir>/<tag>/manifest.json                                        sizes, checksums, state
//   <dir>/.tmp-..., <dir>/.old-...                                   a save under way: commit.ts
import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';

import { DsError } from '../errors.js';

export const LATEST = 'latest';
export const MODEL_FILE = 'mp_rank_00_model_states.safetensors';
export const OPTIMIZER_FILE = 'zero_pp_rank_0_mp_rank_00_optim_states.safetensors';

/** A tag is one file name. Throws DS_CHECKPOINT for one that leaves the folder or is reserved. */
export function requireTag(tag: string): void {
  if (/^[^./\\\0][^/\\\0]{0,199}$/.test(tag) && tag !== LATEST) return;
  throw new DsError({
    code: 'DS_CHECKPOINT',
    op: 'checkpoint tag',
    expected: 'a file name that starts with no dot and is not "latest"',
    got: JSON.stringify(tag),
  });
}

/** The tags in `dir`, oldest name first with numbers in numeric order. Throws DS_CHECKPOINT. */
export async function listTags(dir: string): Promise<string[]> {
  const entries = await readdir(dir, { withFileTypes: true }).catch((cause: Error) => {
    throw new DsError({
      code: 'DS_CHECKPOINT',
      op: dir,
      expected: 'a folder with checkpoints',
      got: cause.message,
      hint: 'Check the path; it is relative to the working directory.',
      cause,
    });
  });
  const tags = entries.filter((e) => e.isDirectory() && !e.name.startsWith('.')).map((e) => e.name);
  const { compare } = new Intl.Collator('en', { numeric: true });
  return tags.sort(compare);
}

/** The tag that `latest` names. Throws DS_CHECKPOINT with the tags there are when it is missing. */
export async function readLatest(dir: string): Promise<string> {
  const tags = await listTags(dir);
  const text = await readFile(join(dir, LATEST), 'utf8').catch(() => null);
  if (text === null) throw missingTag(dir, 'a file "latest"', tags);
  const tag = text.trim();
  requireTag(tag);
  return tag;
}

export function missingTag(dir: string, expected: string, tags: readonly string[]): DsError {
  return new DsError({
    code: 'DS_CHECKPOINT',
    op: dir,
    expected,
    got: tags.length > 0 ? `the tags ${tags.join(', ')}` : 'a folder without checkpoints',
    hint: tags.length > 0 ? 'Pass one of these tags.' : 'Save a checkpoint there first.',
  });
}

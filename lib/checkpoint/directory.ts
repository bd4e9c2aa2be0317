// Names inside a checkpoint folder: DeepSpeed's layout with safetensors payloads.
//
//   <dir>/latest                                                     text: the tag to resume from
//   <dir>/<tag>/mp_rank_00_model_states.safetensors                  stages 0-2: weights and buffers
//   <dir>/<tag>/zero_pp_rank_D_mp_rank_00_model_states.safetensors   stage 3: those of rank D
//   <dir>/<tag>/zero_pp_rank_D_mp_rank_00_optim_states.safetensors   master weights, moments of rank D
//   <dir>/<tag>/manifest.json                                        sizes, checksums, places, state
//   <dir>/.tmp-..., <dir>/.old-..., <dir>/.gone-...                  a save under way: commit.ts
import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';

import { DsError } from '../errors.js';

export const LATEST = 'latest';

/** The weights of all ranks, written by rank 0. */
export const MODEL_FILE = 'mp_rank_00_model_states.safetensors';

/** The weights that rank `rank` holds. */
export const modelShardFile = (rank: number): string =>
  `zero_pp_rank_${rank}_mp_rank_00_model_states.safetensors`;

export const optimizerFile = (rank: number): string =>
  `zero_pp_rank_${rank}_mp_rank_00_optim_states.safetensors`;

/** Whether a manifest may name it. */
export function isCheckpointFile(name: string): boolean {
  return /^(zero_pp_rank_\d{1,7}_)?mp_rank_00_(model|optim)_states\.safetensors$/.test(name);
}

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

/** The tag that `latest` names, or null: whether there is something to resume from. Throws DS_CHECKPOINT, DS_IO. */
export async function findLatest(dir: string): Promise<string | null> {
  const path = join(dir, LATEST);
  const text = await readFile(path, 'utf8').catch((cause: NodeJS.ErrnoException) => {
    if (cause.code === 'ENOENT' || cause.code === 'ENOTDIR') return null;
    const { message: got } = cause;
    throw new DsError({ code: 'DS_IO', op: path, expected: 'a readable file', got, cause });
  });
  if (text === null) return null;
  const tag = text.trim();
  requireTag(tag);
  return tag;
}

/** The tag that `latest` names. Throws DS_CHECKPOINT with the tags there are when it is missing. */
export async function readLatest(dir: string): Promise<string> {
  const tag = await findLatest(dir);
  if (tag !== null) return tag;
  throw missingTag(dir, 'a file "latest"', await listTags(dir));
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

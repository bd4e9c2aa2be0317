// File names in a checkpoint folder: DeepSpeed's layout with safetensors files. D is a data rank.
// MM is the index of a model partition, which tensor and pipeline parallelism make; 00 if the model
// is not divided.
//
//   <dir>/latest                                                    text: the tag to resume from
//   <dir>/<tag>/mp_rank_MM_model_states.safetensors                 stages 0-2: weights, buffers
//   <dir>/<tag>/zero_pp_rank_D_mp_rank_MM_model_states.safetensors  stage 3: weights of rank D
//   <dir>/<tag>/zero_pp_rank_D_mp_rank_MM_optim_states.safetensors  masters, moments of rank D
//   <dir>/<tag>/manifest.json                                       sizes, checksums, parts, state
//   <dir>/.save-..., .tmp-..., .old-..., .gone-..., .latest-...     a save: claim.ts, commit.ts

import type { Stats } from 'node:fs';
import { lstat, readdir } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import { DsError } from '../errors.js';
import { InputFile } from '../runtime/input-file.js';
import { absolutePath, errorCode } from '../runtime/system-error.js';
import { asDsError, ifThere, isMissingPath } from './file-error.js';
import { requirePath } from './folder.js';

export const LATEST = 'latest';
export const MANIFEST = 'manifest.json';

/** Maximum bytes of `latest`. */
const MAX_LATEST_BYTES = 4096;

/**
 * Identifies the files of a rank. `data`: its data rank. `model`: the index of its model partition.
 */
export interface PartNumber {
  data: number;
  model: number;
}

const modelOf = (model: number): string => `mp_rank_${String(model).padStart(2, '0')}`;

/**
 * Returns the name of the file with the weights of a model partition. Data rank 0 writes the file.
 */
export const modelFile = (model: number): string => `${modelOf(model)}_model_states.safetensors`;

/** Returns the name of the file with the weights of one data rank (ZeRO stage 3). */
export const modelShardFile = ({ data, model }: PartNumber): string =>
  `zero_pp_rank_${data}_${modelOf(model)}_model_states.safetensors`;

/** Returns the name of the file with the optimizer state of one data rank. */
export const optimizerFile = ({ data, model }: PartNumber): string =>
  `zero_pp_rank_${data}_${modelOf(model)}_optim_states.safetensors`;

/** Returns whether a manifest may list a file of this name. */
export function isCheckpointFile(name: string): boolean {
  return /^(zero_pp_rank_\d{1,7}_)?mp_rank_\d{2,7}_(model|optim)_states\.safetensors$/.test(name);
}

/**
 * Maximum UTF-8 bytes of a tag. With the additions of a save, it is then still a valid file name.
 */
const MAX_TAG_BYTES = 200;

/**
 * Returns whether `tag` is one file name that `latest` can store: no control characters, and no
 * blank at the start or end.
 */
function isTag(tag: unknown): tag is string {
  return (
    typeof tag === 'string' &&
    // biome-ignore lint/suspicious/noControlCharactersInRegex: a tag must not contain them.
    /^[^./\\\x00-\x1f\x7f][^/\\\x00-\x1f\x7f]*$/.test(tag) &&
    tag === tag.trim() &&
    tag !== LATEST &&
    Buffer.byteLength(tag) <= MAX_TAG_BYTES &&
    Buffer.from(tag).toString() === tag
  );
}

/**
 * Throws DS_CHECKPOINT unless `tag` is a valid tag: one file name that stays in the folder and is
 * not reserved. A round trip through `latest` must not change it. The error names `file`, the file
 * that contains the tag.
 */
export function requireTag(tag: unknown, file = ''): asserts tag is string {
  if (isTag(tag)) return;
  throw new DsError({
    code: 'DS_CHECKPOINT',
    op: file ? `${file}: checkpoint tag` : 'checkpoint tag',
    expected: `a file name of at most ${MAX_TAG_BYTES} bytes that is not "latest"`,
    got: typeof tag === 'string' ? JSON.stringify(tag.slice(0, 2 * MAX_TAG_BYTES)) : typeof tag,
    hint: 'It starts with no dot, has no slash or control character, and no blank at either end.',
  });
}

/**
 * Throws DS_CHECKPOINT unless `latest` is missing or contains a tag: a save must not replace a file
 * that it did not write.
 */
export async function requireLatestReplaceable(dir: string): Promise<void> {
  const path = join(dir, LATEST);
  const status = await ifThere(path, () => lstat(path));
  if (!status) return;
  const small = status.isFile() && status.size <= 4 * MAX_TAG_BYTES;
  if (small && isTag((await textOf(path)).trim())) return;
  throw new DsError({
    code: 'DS_CHECKPOINT',
    op: path,
    expected: 'nothing of this name, or a file that names a tag',
    got: status.isFile() ? 'a file with other contents' : kindOf(status),
    hint: 'Nothing was changed: move it away, or save with { saveLatest: false }.',
  });
}

function kindOf(status: Stats): string {
  if (status.isDirectory()) return 'a folder';
  return status.isSymbolicLink() ? 'a symbolic link' : 'something else';
}

/**
 * Returns the tags in `dir`, sorted by name; numbers in names sort by value. Throws DS_CHECKPOINT
 * if `dir` does not exist, DS_ARGUMENT if `dir` is not a path, and DS_IO.
 */
export async function listTags(dir: string): Promise<string[]> {
  requirePath('listTags', dir);
  const entries = await readdir(dir, { withFileTypes: true }).catch((cause: Error) => {
    if (!isMissingPath(cause)) throw asDsError(cause, dir);
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

/**
 * Returns the tag in `latest`, which is the checkpoint to resume from; null if the file does not
 * exist. Throws DS_CHECKPOINT if the file contains no tag, DS_ARGUMENT if `dir` is not a path,
 * DS_IO.
 */
export async function findLatest(dir: string): Promise<string | null> {
  requirePath('findLatest', dir);
  const path = join(dir, LATEST);
  const text = await textOf(path).catch((error: DsError) => {
    const code = errorCode(error.cause);
    if (code === 'ENOENT' || code === 'ENOTDIR') return null;
    throw error;
  });
  if (text === null) return null;
  const tag = text.trim();
  requireTag(tag, path);
  return tag;
}

async function textOf(path: string): Promise<string> {
  const file = await InputFile.open(path);
  try {
    return await file.text(MAX_LATEST_BYTES);
  } finally {
    await file.close();
  }
}

/**
 * Returns the tag in `latest`. If the file is missing, throws DS_CHECKPOINT with the existing tags.
 */
export async function readLatest(dir: string): Promise<string> {
  const tag = await findLatest(dir);
  if (tag !== null) return tag;
  throw await missingTag(dir, 'a file "latest"');
}

/**
 * Returns the error that `dir` lacks `expected`. It names the contents of `dir`. Throws as
 * listTags().
 */
export async function missingTag(dir: string, expected: string): Promise<DsError> {
  const tags = await listTags(dir);
  const refusedError = (got: string, hint: string): DsError =>
    new DsError({ code: 'DS_CHECKPOINT', op: dir, expected, got, hint });
  if (await isThere(join(dir, MANIFEST))) {
    const fullPath = absolutePath(dir);
    const hint = `Give the folder that it lies in, ${dirname(fullPath)}, and the tag ${basename(fullPath)}.`;
    return refusedError('a checkpoint itself', hint);
  }
  const isFolder = await Promise.all(tags.map((tag) => isThere(join(dir, tag, LATEST))));
  const folder = tags.findLast((_, i) => isFolder[i]);
  if (folder !== undefined) {
    return refusedError(
      'folders with checkpoints in it',
      `Give one of them: ${join(dir, folder)}.`,
    );
  }
  if (tags.length === 0) {
    return refusedError('a folder without checkpoints', 'Save a checkpoint there first.');
  }
  return refusedError(`the tags ${tags.join(', ')}`, 'Pass one of these tags.');
}

const isThere = async (path: string): Promise<boolean> =>
  (await ifThere(path, () => lstat(path))) !== null;

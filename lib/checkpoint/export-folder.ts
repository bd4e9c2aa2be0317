// Writes a folder of whole weights in safetensors files, with the index and the config.json that
// other libraries read.

import { copyFile, lstat, readdir, writeFile } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import type { JsonObject } from '../../types/json.js';
import type { DsError } from '../errors.js';
import { dtypeSize } from '../runtime/dtype.js';
import { renameExclusive, syncPath } from '../runtime/file.js';
import { argumentError, valueError } from '../runtime/input-errors.js';
import { required } from '../runtime/required.js';
import { absolutePath } from '../runtime/system-error.js';
import { numel } from '../runtime/view.js';
import { begin, clearFolder, finish } from './commit.js';
import { requireSpace } from './disk-space.js';
import { orDsError } from './file-error.js';
import { type TensorSource, writeSafetensors } from './safetensors-writer.js';
import { CONFIG_FILE, GENERATION_FILE, INDEX_FILE, WEIGHTS_FILE } from './weight-files.js';

/** Tag of an export's draft folder. The draft is in `out` if `out` exists, else in its parent. */
const DRAFT = 'export';

/** The target of an export: a folder to create, or an empty folder. */
export interface FreeFolder {
  readonly path: string;
  readonly isThere: boolean;
}

/** The content of an export. */
interface FolderContent {
  sources: readonly TensorSource[];
  /** Content of config.json; null: no file. */
  config: JsonObject | null;
  /** Content of generation_config.json; null: no file. */
  generation: JsonObject | null;
  /** Paths of files to copy into the folder. */
  copies?: readonly string[];
  /** Maximum bytes of tensors per file; a larger tensor gets its own file. */
  maxShardBytes: number;
}

/**
 * Writes the folder. It appears when it is complete and `checkSources` has resolved: the caller
 * checks there that its sources did not change. In an existing folder, the file that makes the
 * others readable is written last. Returns the names of the files. Throws DS_IO if a file cannot be
 * written, and DS_ARGUMENT if other files are in the way.
 */
export async function writeFolder(
  { path, isThere }: FreeFolder,
  { sources, config, generation, copies = [], maxShardBytes }: FolderContent,
  checkSources: () => Promise<void> = async () => {},
): Promise<string[]> {
  const shards = split(sources, maxShardBytes);
  const draft = await begin(isThere ? path : dirname(path), DRAFT);
  try {
    requireSpace(draft.folder, bytesOf(sources));
    const files = await writeShards(draft.folder, shards);
    for (const copy of copies) files.unshift(await copyInto(copy, draft.folder));
    const beside: [string, JsonObject | null][] = [
      [GENERATION_FILE, generation],
      [CONFIG_FILE, config],
    ];
    for (const [file, value] of beside) {
      if (!value) continue;
      files.unshift(file);
      await writeJson(draft.folder, file, value);
    }
    await syncPath(draft.folder);
    await checkSources();
    await moveToTarget(draft.folder, path, isThere ? files : null);
    return files;
  } finally {
    await finish(draft);
  }
}

/**
 * Renames the folder `from` to `path` if `files` is null. Else `path` is an empty folder of the
 * user: moves `files` into it, in order; the last file makes the others readable. Throws
 * DS_ARGUMENT if other files have appeared meanwhile.
 */
async function moveToTarget(
  from: string,
  path: string,
  files: readonly string[] | null,
): Promise<void> {
  if (!files) {
    if (!(await renameExclusive(from, path)))
      throw takenError(path, 'a file or folder that another process has just created');
    return syncPath(dirname(path));
  }
  const created: string[] = [];
  try {
    for (const file of files) {
      const location = join(path, file);
      if (!(await renameExclusive(join(from, file), location))) throw takenError(path, file);
      created.push(file);
    }
  } catch (error) {
    for (const file of created) await renameExclusive(join(path, file), join(from, file));
    throw error;
  }
  await syncPath(path);
}

/** Distributes sources, in order, to files of at most `limit` bytes of tensors. */
function split(sources: readonly TensorSource[], limit: number): TensorSource[][] {
  if (typeof limit !== 'number' || !(limit > 0)) {
    throw valueError('maxShardBytes', 'a positive number of bytes', limit);
  }
  const shards: TensorSource[][] = [[]];
  for (const source of sources) {
    const last = required(shards.at(-1));
    if (last.length > 0 && bytesOf([...last, source]) > limit) shards.push([source]);
    else last.push(source);
  }
  return shards;
}

/** Returns the total bytes of the tensors. */
export function bytesOf(sources: readonly TensorSource[]): number {
  return sources.reduce((sum, { shape, dtype }) => sum + numel(shape) * dtypeSize(dtype), 0);
}

async function writeShards(
  folder: string,
  shards: readonly (readonly TensorSource[])[],
): Promise<string[]> {
  if (shards.length === 1) {
    await writeSafetensors(join(folder, WEIGHTS_FILE), shards[0] as TensorSource[]);
    return [WEIGHTS_FILE];
  }
  const number = (n: number): string => String(n).padStart(5, '0');
  const files: string[] = [];
  const weightMap: [string, string][] = [];
  for (const [i, shard] of shards.entries()) {
    const file = `model-${number(i + 1)}-of-${number(shards.length)}.safetensors`;
    await writeSafetensors(join(folder, file), shard);
    files.push(file);
    for (const { name } of shard) weightMap.push([name, file]);
  }
  await writeJson(folder, INDEX_FILE, {
    metadata: { total_size: bytesOf(shards.flat()) },
    weight_map: Object.fromEntries(weightMap),
  });
  return [...files, INDEX_FILE];
}

/** Copies a file into `folder` and returns its name. */
async function copyInto(path: string, folder: string): Promise<string> {
  const name = basename(path);
  await orDsError(path, () => copyFile(path, join(folder, name)));
  await syncPath(join(folder, name));
  return name;
}

/** Keys of config.json with numbers that transformers 5 requires to be floats. */
const FLOATS = [
  'attention_dropout',
  'router_jitter_noise',
  'input_jitter_noise',
  'router_aux_loss_coef',
  'routed_scaling_factor',
  'attn_logit_softcapping',
  'final_logit_softcapping',
  'logit_scale',
  'clip_qkv',
  'altup_coef_clip',
  'attention_multiplier',
  'embedding_fraction',
  'embedding_multiplier',
  'residual_multiplier',
  'lm_head_multiplier',
  'key_multiplier',
  'attention_in_multiplier',
  'attention_out_multiplier',
  'ssm_in_multiplier',
  'ssm_out_multiplier',
  'logits_scaling',
  'resid_pdrop',
  'embd_pdrop',
  'attn_pdrop',
  'hidden_dropout',
  'hidden_dropout_prob',
  'attention_probs_dropout_prob',
  'initializer_range',
  'initializer_cutoff_factor',
  'time_step_min',
  'time_step_max',
  'z_loss_coefficient',
];
/** Keys of config.json with lists of floats. */
const FLOAT_LISTS = [
  'time_step_limit',
  'short_factor',
  'long_factor',
  'mlp_multipliers',
  'ssm_multipliers',
  'activation_sparsity_pattern',
];

const WHOLE_FLOAT = new RegExp(`^(\\s*"(?:${FLOATS.join('|')})": -?\\d+)(?=,?$)`, 'gm');
const FLOAT_LIST = new RegExp(`^\\s*"(?:${FLOAT_LISTS.join('|')})": \\[$[^\\]]*\\]`, 'gm');

/**
 * Returns the text of a config.json with ".0" after whole numbers of FLOATS and FLOAT_LISTS.
 */
const withFloats = (text: string): string =>
  text
    .replace(WHOLE_FLOAT, '$1.0')
    .replace(FLOAT_LIST, (list) => list.replace(/^(\s*-?\d+)(?=,?$)/gm, '$1.0'));

async function writeJson(folder: string, name: string, value: JsonObject): Promise<void> {
  const path = join(folder, name);
  // JavaScript writes 30.0 as 30, which transformers 5 rejects for floats.
  const text = withFloats(JSON.stringify(value, null, 2));
  await orDsError(folder, () => writeFile(path, `${text}\n`));
  await syncPath(path);
}

/**
 * Returns `out` as the target of an export if it does not exist or is empty. Leftovers of dead
 * exports are deleted first. Throws DS_ARGUMENT if it contains anything else.
 */
export async function requireFree(out: string): Promise<FreeFolder> {
  const path = absolutePath(out);
  const status = await orDsError(path, () =>
    lstat(path).catch((error: NodeJS.ErrnoException) => {
      if (error.code === 'ENOENT') return null;
      throw error;
    }),
  );
  if (!status) return { path, isThere: false };
  if (!status.isDirectory())
    throw takenError(path, status.isFile() ? 'a file' : 'a link or a device');
  await orDsError(path, () => clearFolder(path));
  const [existing] = await orDsError(path, () => readdir(path));
  if (existing !== undefined) throw takenError(path, `a folder that contains ${existing}`);
  return { path, isThere: true };
}

function takenError(op: string, got: string): DsError {
  return argumentError(
    op,
    'a folder that does not exist yet, or an empty one',
    got,
    'Choose another name, or move it away first.',
  );
}

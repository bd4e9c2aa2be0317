// Saving and opening checkpoints: named tensors and JSON state, committed atomically, verified when
// opened.
import { join } from 'node:path';

import type { JsonObject } from '../../types/json.js';
import { DsError } from '../errors.js';
import type { Tensor } from '../tensor/index.js';
import { version } from '../version.js';
import { commit, find } from './commit.js';
import {
  listTags,
  MODEL_FILE,
  missingTag,
  OPTIMIZER_FILE,
  readLatest,
  requireTag,
} from './directory.js';
import type { TensorEntry } from './header.js';
import { readVerified, writeManifest } from './manifest.js';
import {
  type FileSum,
  type NamedTensor,
  SafetensorsFile,
  writeSafetensors,
} from './safetensors.js';

export { listTags } from './directory.js';
export type { TensorEntry } from './header.js';
export type { NamedTensor } from './safetensors.js';

export interface CheckpointContent {
  modelTensors: readonly NamedTensor[];
  optimizerTensors: readonly NamedTensor[];
  /** Anything JSON that belongs to it: counters, schedule, generators. */
  state: JsonObject;
  /** Whether `latest` is to name it. */
  saveLatest: boolean;
}

/**
 * Writes `dir/tag` and returns its path. A crash at any moment leaves the previous checkpoint of
 * that tag or this one, complete. Tensors must not change until the promise settles. Throws DS_IO
 * (disk full, no permission), or DS_CHECKPOINT for a bad tag or a tensor name given twice.
 */
export async function saveCheckpoint(
  dir: string,
  tag: string,
  content: CheckpointContent,
): Promise<string> {
  requireTag(tag);
  const { modelTensors, optimizerTensors, state, saveLatest } = content;
  requireDistinct([...modelTensors, ...optimizerTensors]);
  return commit(dir, tag, saveLatest, async (folder) => {
    const files: Record<string, FileSum> = {};
    const payloads = { [MODEL_FILE]: modelTensors, [OPTIMIZER_FILE]: optimizerTensors };
    for (const [name, tensors] of Object.entries(payloads)) {
      files[name] = await writeSafetensors(join(folder, name), tensors);
    }
    await writeManifest(folder, { library: version, files, state });
  });
}

/** A verified checkpoint. */
export interface Checkpoint {
  readonly path: string;
  readonly tag: string;
  readonly state: JsonObject;
  /** Every tensor's name, the model's first. */
  names(): string[];
  /** Dtype and shape of a tensor. Throws DS_CHECKPOINT when there is none of that name. */
  tensor(name: string): TensorEntry;
  /** Overwrites `into`, which has the saved dtype and shape or is flat. Throws DS_CHECKPOINT. */
  readInto(name: string, into: Tensor): Promise<void>;
}

/**
 * Opens `dir/tag`, by default the one that `latest` names. Every file is read once and compared
 * with its checksum, so that loading cannot fail halfway. Throws DS_CHECKPOINT: no such tag (with
 * those there are), a half-written checkpoint, a damaged file (named).
 */
export async function openCheckpoint(dir: string, tag?: string): Promise<Checkpoint> {
  const wanted = tag ?? (await readLatest(dir));
  requireTag(wanted);
  const path = await find(dir, wanted);
  if (path === null) throw missingTag(dir, `a checkpoint "${wanted}"`, await listTags(dir));
  const { files, state } = await readVerified(path);
  const home = new Map<string, { file: SafetensorsFile; entry: TensorEntry }>();
  for (const name of Object.keys(files)) {
    const file = await SafetensorsFile.open(join(path, name));
    for (const entry of file.entries) home.set(entry.name, { file, entry });
  }
  const lookUp = (name: string) => {
    const found = home.get(name);
    if (found) return found;
    throw new DsError({
      code: 'DS_CHECKPOINT',
      op: path,
      expected: `a tensor "${name}"`,
      got: `${home.size} others`,
      hint: 'It was saved from another model.',
    });
  };
  return {
    path,
    tag: wanted,
    state,
    names: () => [...home.keys()],
    tensor: (name) => lookUp(name).entry,
    readInto: async (name, into) => {
      const { file, entry } = lookUp(name);
      await file.readInto(entry, into);
    },
  };
}

/** A reader asks for tensors by name alone, whichever file they are in. */
function requireDistinct(tensors: readonly NamedTensor[]): void {
  const seen = new Set<string>();
  for (const { name } of tensors) {
    if (!seen.has(name)) {
      seen.add(name);
      continue;
    }
    throw new DsError({
      code: 'DS_CHECKPOINT',
      op: 'save',
      expected: 'a different name for every tensor',
      got: `"${name}" twice`,
    });
  }
}

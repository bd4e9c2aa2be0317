// Verifies a checkpoint: one rank reads each file and compares it with the manifest.

import type { InputFile } from '../runtime/input-file.js';
import { required } from '../runtime/required.js';
import { damaged } from './fields.js';
import type { TensorEntry } from './header.js';
import type { Manifest, TensorRecord } from './manifest.js';
import { SafetensorsFile } from './safetensors-file.js';
import { entryName, entryShape, type Part } from './shard.js';
import { type CheckpointWorld, inUnison } from './world.js';

/**
 * Reads every file once, file i on rank i modulo the world size. `files`: the open files of the
 * manifest. Throws DS_CHECKPOINT on all ranks with the file if its size, checksum or tensors differ
 * from the manifest.
 */
export async function verify(
  world: CheckpointWorld,
  manifest: Manifest,
  files: readonly InputFile[],
): Promise<void> {
  await inUnison(world, 'verifying the checkpoint', async () => {
    for (let i = world.rank; i < files.length; i += world.size) {
      await verifyFile(manifest, i, required(files[i]));
    }
    return null;
  });
}

async function verifyFile(manifest: Manifest, index: number, file: InputFile): Promise<void> {
  const { bytes, crc32c } = required(manifest.files[index]);
  const { path } = file;
  if (file.bytes !== bytes) throw damaged(path, `${bytes} bytes`, `${file.bytes}`);
  const sum = await file.checksum();
  if (sum !== crc32c) throw damaged(path, `checksum ${hex(crc32c)}`, hex(sum));
  const entries = entriesByName(await SafetensorsFile.of(file));
  for (const records of [manifest.model, manifest.optimizer]) {
    for (const [tensor, record] of records) {
      for (const part of record.parts) {
        if (part.file === index) requireEntry({ path, entries }, tensor, record, part);
      }
    }
  }
}

export function entriesByName({ entries }: SafetensorsFile): ReadonlyMap<string, TensorEntry> {
  return new Map(entries.map((entry) => [entry.name, entry]));
}

/**
 * Returns the entry with a part. Throws DS_CHECKPOINT if the file lacks it, or has another tensor
 * with its name.
 */
export function requireEntry(
  file: { path: string; entries: ReadonlyMap<string, TensorEntry> },
  tensor: string,
  { dtype, shape }: TensorRecord,
  part: Part,
): TensorEntry {
  const name = entryName(tensor, shape, part);
  const entry = file.entries.get(name);
  const location = `${file.path}: ${name}`;
  if (!entry) throw damaged(location, 'this tensor of the manifest', 'no such tensor');
  const wanted = entryShape(part);
  if (entry.dtype === dtype && entry.shape.join() === wanted.join()) return entry;
  const got = `${entry.dtype} [${entry.shape.join(', ')}]`;
  throw damaged(location, `${dtype} [${wanted.join(', ')}], as in the manifest`, got);
}

function hex(sum: number): string {
  return sum.toString(16).padStart(8, '0');
}

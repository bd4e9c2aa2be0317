// Writes one safetensors file from several ranks. Each rank writes its own parts, so no rank
// gathers the weights.

import { lstat, rename } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import { DsError } from '../errors.js';
import { boxesOf, isSameBox, partsOf, positionIn, runShape, wholeBox } from '../runtime/box.js';
import { cpu } from '../runtime/device.js';
import { dtypeSize } from '../runtime/dtype.js';
import { renameExclusive, syncPath, writeFile } from '../runtime/file.js';
import { argumentError } from '../runtime/input-errors.js';
import { absolutePath } from '../runtime/system-error.js';
import { numel } from '../runtime/view.js';
import { held, noGrad, type Tensor, to } from '../tensor/index.js';
import { digestOf, mergedCatalog } from './catalog.js';
import { begin, type Draft, finish } from './commit.js';
import { requireSpace } from './disk-space.js';
import { bytesOf } from './export-folder.js';
import { isPlainName, requirePath } from './folder.js';
import { encodeHeader, type FileMetadata } from './header.js';
import { SafetensorsFile } from './safetensors-file.js';
import { type TensorSource, writeAt, writeSafetensors } from './safetensors-writer.js';
import { isRemote, type Remote, rangeOf, type Shard, type TensorInfo } from './shard.js';
import { isHost } from './staging.js';
import { WEIGHTS_FILE } from './weight-files.js';
import { type CheckpointWorld, onAllRanks } from './world.js';

/** Label of the first exchange of writeTogether(). */
export const BEGIN_EXPORT = 'comparing tensors';

/**
 * Writes `dir`/`file` from all ranks and resolves with its path. The file appears when it is
 * complete.
 *
 * - `tensors`: all tensors with a part on this rank, as whole tensors.
 * - `shards`: this rank's parts. The parts of all ranks together contain every element once.
 *
 * Throws on all ranks: DS_IO if a write fails, DS_COMM if a rank does not call it. Throws
 * DS_CHECKPOINT on all ranks if elements are missing or another file is at the path.
 */
export async function writeTogether(
  { dir, file }: { dir: string; file: string },
  tensors: ReadonlyMap<string, TensorInfo>,
  shards: readonly Shard[],
  world: CheckpointWorld,
): Promise<string> {
  const rankTensors = { model: tensors, optimizer: new Map<string, TensorInfo>() };
  const digests = await onAllRanks(world, BEGIN_EXPORT, async () => digestOf(rankTensors));
  const { model } = await mergedCatalog(world, rankTensors, digests);
  const table = Array.from(model, ([name, info]) => ({ name, ...info }));
  const { bytes: head, entries } = encodeHeader(table);
  const starts = new Map(entries.map(({ name, start }) => [name, head.length + start]));
  let draft: Draft | null = null;
  try {
    const [folder] = await onAllRanks(world, 'making the file', async () => {
      requirePath('save16bitModel', dir);
      if (typeof file !== 'string' || !isPlainName(file)) throw notNameError(file);
      if (world.rank !== 0) return null;
      await requireWeights(join(dir, file));
      draft = await begin(absolutePath(dir), 'export');
      requireSpace(draft.folder, head.length + (entries.at(-1)?.end ?? 0));
      await writeFile(join(draft.folder, WEIGHTS_FILE), { offset: 0, head });
      return basename(draft.folder);
    });
    const path = join(absolutePath(dir), String(folder), WEIGHTS_FILE);
    const written = await onAllRanks(world, 'writing weights', async () => {
      let count = 0;
      for (const shard of shards) {
        const start = starts.get(shard.name);
        if (start === undefined)
          throw incompleteError(shard.name, 'a tensor of this model', 'an unknown name');
        await writePart(path, start, shard);
        count += shard.tensor.numel;
      }
      await syncPath(path);
      return count;
    });
    const totalElements = table.reduce((sum, { shape }) => sum + numel(shape), 0);
    const total = written.reduce((sum, count) => sum + count, 0);
    if (total !== totalElements)
      throw incompleteError(file, `${totalElements} elements of all ranks`, `${total}`);
    await onAllRanks(world, 'completing the file', async () => {
      if (world.rank !== 0) return null;
      await putInPlace(path, join(dir, file));
      return null;
    });
    return join(dir, file);
  } finally {
    if (draft) await finish(draft);
  }
}

/**
 * Writes a shard to its tensor, which starts at byte `start` of the file. A box is written row by
 * row, other shards at once. Host memory in addition: two buffers of 32 MiB for device tensors, two
 * parts for remote values, all values for a box.
 */
async function writePart(path: string, start: number, shard: Shard): Promise<void> {
  const { name, shape, tensor } = shard;
  const size = dtypeSize(tensor.dtype);
  const range = rangeOf(shard);
  const tensorBox = wholeBox(shape);
  if (isSameBox(range.box, tensorBox))
    return writeAt(path, start + range.from * size, name, tensor);
  const values = await onHost(tensor);
  try {
    for (const box of boxesOf(range)) {
      for (const row of partsOf(box, runShape(box, [range.box, tensorBox]))) {
        const from = values.offset + positionIn(range.box, row.offset) - range.from;
        const bytes = numel(row.shape) * size;
        const ranges = [{ buffer: values.buffer, offset: from * size, bytes }];
        await writeFile(path, { offset: start + positionIn(tensorBox, row.offset) * size, ranges });
      }
    }
  } finally {
    values.release();
  }
}

/** Returns the values in host memory. The caller releases the tensor. */
async function onHost(values: Tensor | Remote): Promise<Tensor> {
  if (isRemote(values)) {
    const all = values.borrow(0, values.numel);
    await all.arrived();
    return all.tensor;
  }
  return isHost(values.buffer) ? values.retain() : held(() => noGrad(() => to(values, cpu())));
}

/**
 * Writes one safetensors file from this process. The file appears when it is complete, and may
 * replace a safetensors file. Throws DS_CHECKPOINT if another kind of file is at the path, DS_IO.
 */
export async function writeAlone(
  path: string,
  sources: readonly TensorSource[],
  metadata: FileMetadata = {},
): Promise<void> {
  await requireWeights(path);
  const draft = await begin(dirname(absolutePath(path)), 'export');
  try {
    const draftPath = join(draft.folder, WEIGHTS_FILE);
    requireSpace(draft.folder, bytesOf(sources));
    await writeSafetensors(draftPath, sources, metadata);
    await putInPlace(draftPath, path);
  } finally {
    await finish(draft);
  }
}

async function putInPlace(draftPath: string, path: string): Promise<void> {
  const replaces = await requireWeights(path);
  if (replaces) await rename(draftPath, path);
  else if (!(await renameExclusive(draftPath, path))) throw pathTakenError(path);
  await syncPath(dirname(absolutePath(path)));
}

/**
 * Returns whether `path` is a safetensors file. Returns false if it does not exist. Throws
 * DS_CHECKPOINT if it is anything else.
 */
async function requireWeights(path: string): Promise<boolean> {
  const status = await lstat(path).catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT' || error.code === 'ENOTDIR') return null;
    throw error;
  });
  if (!status) return false;
  const isWeights = status.isFile() && (await SafetensorsFile.open(path).catch(() => null));
  if (isWeights) return true;
  throw pathTakenError(path);
}

function pathTakenError(op: string): DsError {
  return new DsError({
    code: 'DS_CHECKPOINT',
    op,
    expected: 'nothing of this name, or a safetensors file to replace',
    got: 'another file or a folder',
    hint: 'No file was changed. Choose another name, or move it away.',
  });
}

function notNameError(file: unknown): DsError {
  const op = 'save16bitModel file';
  const got = JSON.stringify(file) ?? typeof file;
  return argumentError(op, 'a file name without a folder', got);
}

function incompleteError(op: string, expected: string, got: string): DsError {
  return new DsError({ code: 'DS_CHECKPOINT', op, expected, got });
}

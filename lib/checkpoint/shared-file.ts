// One safetensors file of whole tensors that several ranks write together, each its parts, without gathering anything.
import { randomBytes } from 'node:crypto';
import { rename, rm } from 'node:fs/promises';
import { join } from 'node:path';

import { DsError } from '../errors.js';
import { dtypeSize } from '../runtime/dtype.js';
import { syncPath, writeFile } from '../runtime/file.js';
import { numel } from '../runtime/view.js';
import { orDsError } from './commit.js';
import { isPlainName } from './folder.js';
import { encodeHeader } from './header.js';
import { makeFolder } from './make-folder.js';
import { writeAt } from './safetensors-writer.js';
import type { Shard, TensorInfo } from './shard.js';
import { type CheckpointWorld, inUnison } from './world.js';

/**
 * Writes `dir`/`file`, which appears when it is complete, and returns its path. `tensors` are the same on every rank;
 * the shards of all ranks are all of their elements. Throws on all ranks DS_IO, DS_CHECKPOINT, DS_COMM.
 */
export async function writeTogether(
  { dir, file }: { dir: string; file: string },
  tensors: ReadonlyMap<string, TensorInfo>,
  shards: readonly Shard[],
  world: CheckpointWorld,
): Promise<string> {
  const table = Array.from(tensors, ([name, info]) => ({ name, ...info }));
  const { bytes: head, entries } = encodeHeader(table);
  const starts = new Map(entries.map(({ name, start }) => [name, head.length + start]));
  const names = await inUnison(world, 'making the file', async () => {
    if (!isPlainName(file)) throw notAName(file);
    if (world.rank !== 0) return '';
    const name = `.${file}-${randomBytes(6).toString('hex')}`;
    await orDsError(dir, () => makeFolder(dir));
    await writeFile(join(dir, name), { offset: 0, head });
    return name;
  });
  const draft = join(dir, names[0] as string);
  try {
    const written = await inUnison(world, 'writing weights', async () => {
      let count = 0;
      for (const { name, from = 0, tensor } of shards) {
        const start = starts.get(name);
        if (start === undefined) throw incomplete(`${name}`, 'a tensor of this model', 'another');
        await writeAt(draft, start + from * dtypeSize(tensor.dtype), name, tensor);
        count += tensor.numel;
      }
      await syncPath(draft);
      return count;
    });
    const whole = table.reduce((sum, { shape }) => sum + numel(shape), 0);
    const total = written.reduce((sum, count) => sum + count, 0);
    if (total !== whole) throw incomplete(file, `${whole} elements of all ranks`, `${total}`);
    await inUnison(world, 'completing the file', async () => {
      if (world.rank !== 0) return null;
      await orDsError(dir, () => rename(draft, join(dir, file)));
      await syncPath(dir);
      return null;
    });
    return join(dir, file);
  } catch (error) {
    if (world.rank === 0) await rm(draft, { force: true }).catch(() => undefined);
    throw error;
  }
}

function notAName(got: string): DsError {
  const op = 'save16bitModel file';
  return new DsError({ code: 'DS_ARGUMENT', op, expected: 'a file name', got });
}

function incomplete(op: string, expected: string, got: string): DsError {
  return new DsError({ code: 'DS_CHECKPOINT', op, expected, got });
}

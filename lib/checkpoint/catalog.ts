// Merges the catalogs of all ranks of a save. A catalog lists the tensors, as whole tensors, of
// which one rank saves parts. Ranks with different layers (pipeline stages) have different
// catalogs.

import { createHash } from 'node:crypto';
import { DsError } from '../errors.js';
import { required } from '../runtime/required.js';
import { describe } from '../runtime/view.js';
import type { TensorInfo } from './shard.js';
import { type CheckpointWorld, onAllRanks } from './world.js';

/**
 * Tensors by name. `model`: weights and buffers. `optimizer`: master weights and optimizer state.
 */
export interface Catalog {
  model: ReadonlyMap<string, TensorInfo>;
  optimizer: ReadonlyMap<string, TensorInfo>;
}

type Listed = Record<keyof Catalog, [name: string, info: TensorInfo][]>;

/** Returns a digest of the catalog. Ranks with parts of the same tensors get the same digest. */
export function digestOf(catalog: Catalog): string {
  return createHash('sha256')
    .update(JSON.stringify(listTensors(catalog)))
    .digest('hex');
}

/**
 * Returns the union of the catalogs of all ranks. `digests`: the digest of each rank's catalog, by
 * rank. The first rank with each digest sends its catalog; if all digests are equal, no rank sends.
 * Throws DS_CHECKPOINT on all ranks if two ranks describe a tensor differently.
 */
export async function mergedCatalog(
  world: CheckpointWorld,
  ownCatalog: Catalog,
  digests: readonly string[],
): Promise<Catalog> {
  const digest = required(digests[world.rank]);
  if (digests.every((item) => item === digest)) return ownCatalog;
  const isFirst = digests.indexOf(digest) === world.rank;
  const lists = await onAllRanks(world, 'merging tensors', async () =>
    isFirst ? listTensors(ownCatalog) : null,
  );
  return { model: mergeLists(lists, 'model'), optimizer: mergeLists(lists, 'optimizer') };
}

const listTensors = ({ model, optimizer }: Catalog): Listed => ({
  model: [...model],
  optimizer: [...optimizer],
});

function mergeLists(
  lists: readonly (Listed | null)[],
  section: keyof Catalog,
): Map<string, TensorInfo> {
  const all = new Map<string, TensorInfo>();
  const from = new Map<string, number>();
  for (const [rank, list] of lists.entries()) {
    for (const [name, info] of list?.[section] ?? []) {
      const known = all.get(name);
      if (known && formatInfo(known) !== formatInfo(info)) {
        throw differenceError(name, [required(from.get(name)), known], [rank, info]);
      }
      if (known) continue;
      all.set(name, info);
      from.set(name, rank);
    }
  }
  return all;
}

const formatInfo = (info: TensorInfo): string =>
  `${describe(info)}${info.buffer ? ', a buffer' : ''}`;

function differenceError(
  name: string,
  [rank, info]: [number, TensorInfo],
  [other, its]: [number, TensorInfo],
): DsError {
  return new DsError({
    code: 'DS_CHECKPOINT',
    op: `save: ${name}`,
    expected: `${formatInfo(info)}, as on rank ${rank}`,
    got: `${formatInfo(its)} on rank ${other}`,
    hint: 'Give different tensors different names, or divide one tensor between the ranks.',
  });
}

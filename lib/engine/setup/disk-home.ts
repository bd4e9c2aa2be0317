// The offload_optimizer and aio sections of a configuration to a home of optimizer state on disk.
import { mkdirSync } from 'node:fs';
import { resolve } from 'node:path';

import type { ResolvedConfig } from '../../../types/config.js';
import { DsError } from '../../errors.js';
import type { Optimizer } from '../../optim/optimizer.js';
import type { Device } from '../../runtime/device.js';
import { SWAP_ALIGNMENT } from '../../runtime/swap-file.js';
import type { Collectives } from '../../zero/collectives.js';
import {
  DiskHome,
  DiskHomeOfHostWeights,
  type DiskHomeOptions,
} from '../../zero/home/disk-home.js';
import { tileSize } from '../../zero/home/tiles.js';
import type { Partition } from '../../zero/partition.js';

/** What state on disk is made for. */
interface DiskStateOptions {
  config: ResolvedConfig;
  optimizer: Optimizer;
  partitions: readonly Partition[];
  device: Device;
  group: Collectives;
}

/** File systems that are memory. */
const IN_MEMORY: readonly string[] = ['tmpfs', 'ramfs'];

/**
 * A home whose file has its space already. A warning says what makes it slow. Throws DS_IO:
 * nvme_path cannot be a folder, or has too little space.
 */
export function openDiskHome(options: DiskStateOptions, ofHostWeights: boolean): DiskHome {
  const { config, optimizer, partitions, device, group } = options;
  const folder = folderOf(config);
  const Kind = ofHostWeights ? DiskHomeOfHostWeights : DiskHome;
  const label = `optimizer state of rank ${group.rank}`;
  const home = new Kind(device, { optimizer, partitions, folder, label, ...tuningOf(config) });
  const warning = whatIsSlow(home);
  if (warning) {
    process.emitWarning(`Optimizer state in ${folder}: ${warning}`, {
      type: 'DsWarning',
      code: 'DS_IO',
    });
  }
  return home;
}

function folderOf({ zero_optimization: { offload_optimizer: offload } }: ResolvedConfig): string {
  const folder = resolve(offload.nvme_path as string);
  try {
    mkdirSync(folder, { recursive: true });
  } catch (cause) {
    throw new DsError({
      code: 'DS_IO',
      op: `zero_optimization.offload_optimizer.nvme_path ${folder}`,
      expected: 'a folder, or the right to make it',
      got: (cause as Error).message,
      hint: 'Name a folder on a local disk that this user may write to.',
      cause,
    });
  }
  return folder;
}

/** How the file and the slots are used. */
function tuningOf({
  aio,
  zero_optimization: { offload_optimizer: offload, sub_group_size: subGroup },
}: ResolvedConfig): Pick<DiskHomeOptions, 'tile' | 'slots' | 'blockBytes' | 'depth' | 'checkers'> {
  return {
    tile: tileSize(subGroup),
    slots: {
      count: offload.buffer_count,
      readsAhead: offload.pipeline_read ?? true,
      writesBehind: offload.pipeline_write ?? true,
    },
    blockBytes: Math.ceil(aio.block_size / SWAP_ALIGNMENT) * SWAP_ALIGNMENT,
    depth: aio.queue_depth,
    checkers: aio.intra_op_parallelism,
  };
}

/** Why transfers are not those of a disk at its best; null where they are. */
function whatIsSlow({ disk: { fileSystem, direct } }: DiskHome): string | null {
  if (IN_MEMORY.includes(fileSystem)) {
    return `${fileSystem} is memory, so that nothing is saved. Name a folder on a disk.`;
  }
  if (direct) return null;
  return (
    `${fileSystem} refuses O_DIRECT, so that transfers pass through the page cache: they cost ` +
    'memory and copies. Name a folder on a local ext4 or xfs.'
  );
}

// Opens the swap files of weights and optimizer state, as nvme_path and the section aio configure
// them.

import type { ResolvedConfig } from '../../../types/config.js';
import type { Optimizer } from '../../optim/optimizer.js';
import type { Device } from '../../runtime/device.js';
import { makeFolderNow } from '../../runtime/make-folder.js';
import { onDisk } from '../../runtime/on-disk.js';
import { required } from '../../runtime/required.js';
import { SWAP_ALIGNMENT, type SwapFileInfo } from '../../runtime/swap-file.js';
import { absolutePath } from '../../runtime/system-error.js';
import { shardOf } from '../../zero/layout.js';
import type { Partition } from '../../zero/partition.js';
import { DiskWeights } from '../../zero/state/disk-weights.js';
import { NvmeState } from '../../zero/state/placement/nvme.js';
import type { DiskAccess } from '../../zero/state/tile-slots.js';
import { tileSize } from '../../zero/state/tiles.js';
import type { WeightUnit } from '../../zero/unit.js';
import type { Collectives } from '../../zero/wire.js';

interface DiskWeightsRequest {
  config: ResolvedConfig;
  /** The units in forward order. */
  units: readonly WeightUnit[];
  device: Device;
  /** The shard group. */
  group: Collectives;
}

/**
 * Opens storage on a disk for this rank's shards of weights. Warns if the disk is slow. Throws
 * DS_IO if the folder or the file cannot be created.
 */
export function openDiskWeights({ config, units, device, group }: DiskWeightsRequest): DiskWeights {
  const folder = openFolder(config, 'offload_param');
  const { offload_param: offload } = config.zero_optimization;
  const weights = new DiskWeights(device, {
    weights: units.map((unit) => {
      const { numel } = shardOf(unit.layout.numel, group.rank, group.size);
      return { unit, numel };
    }),
    maxInMemory: offload.max_in_cpu,
    slots: offload.buffer_count,
    slotNumel: tileSize(offload.buffer_size),
    folder,
    label: `weights of rank ${group.rank}`,
    ...requestsOf(config),
  });
  if (weights.disk) warnIfSlow('Weights', folder, weights.disk);
  return weights;
}

export interface StateOptions {
  config: ResolvedConfig;
  optimizer: Optimizer;
  /** The partitions in forward order. */
  partitions: readonly Partition[];
  device: Device;
  /** The shard group. */
  group: Collectives;
}

/**
 * Opens optimizer state on a disk. Warns if the disk is slow. Throws DS_IO if the folder or the
 * file cannot be created.
 */
export function openNvmeState(options: StateOptions): NvmeState {
  const { config, optimizer, partitions, device, group } = options;
  const folder = openFolder(config, 'offload_optimizer');
  const { offload_optimizer: offload, sub_group_size: subGroup } = config.zero_optimization;
  const state = new NvmeState(device, {
    optimizer,
    partitions,
    tile: tileSize(subGroup),
    slots: {
      count: offload.buffer_count,
      readsAhead: offload.pipeline_read ?? true,
      writesBehind: offload.pipeline_write ?? true,
    },
    folder,
    label: `optimizer state of rank ${group.rank}`,
    ...requestsOf(config),
  });
  warnIfSlow('Optimizer state', folder, state.disk);
  return state;
}

const IN_MEMORY: readonly string[] = ['tmpfs', 'ramfs'];

/** Returns the absolute path of nvme_path. Creates the folder if it is missing. */
function openFolder(
  { zero_optimization: zero }: ResolvedConfig,
  section: 'offload_optimizer' | 'offload_param',
): string {
  const folder = absolutePath(required(zero[section].nvme_path));
  const wanted = {
    op: `zero_optimization.${section}.nvme_path ${folder}`,
    expected: 'a folder, or the permission to create it',
    hint: 'Set a folder on a local disk with write permission.',
  };
  onDisk(wanted, () => makeFolderNow(folder));
  return folder;
}

/** Returns bytes per request, queue depth and number of checksum threads. */
function requestsOf({ aio }: ResolvedConfig): Omit<DiskAccess, 'folder' | 'label'> {
  return {
    blockBytes: Math.ceil(aio.block_size / SWAP_ALIGNMENT) * SWAP_ALIGNMENT,
    depth: aio.queue_depth,
    checkers: aio.intra_op_parallelism,
  };
}

/** Warns if transfers cannot reach the speed of the disk. `what` is stored in the folder. */
function warnIfSlow(what: string, folder: string, { fileSystem, direct }: SwapFileInfo): void {
  const inMemory = IN_MEMORY.includes(fileSystem);
  if (direct && !inMemory) return;
  const warning = inMemory
    ? `${fileSystem} is memory, so nothing is saved. Use a folder on a disk.`
    : `${fileSystem} refuses O_DIRECT, so transfers use the page cache and cost ` +
      'memory and copies. Use a folder on a local ext4 or xfs.';
  process.emitWarning(`${what} in ${folder}: ${warning}`, { type: 'DsWarning', code: 'DS_IO' });
}

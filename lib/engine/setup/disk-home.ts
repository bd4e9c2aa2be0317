// Creates the disk home of optimizer state from the sections offload_optimizer and aio.
import type { ResolvedConfig } from '../../../types/config.js';
import type { Optimizer } from '../../optim/optimizer.js';
import type { Device } from '../../runtime/device.js';
import type { Collectives } from '../../zero/collectives.js';
import {
  DiskHome,
  DiskHomeOfOffloadedWeights,
  type DiskHomeOptions,
} from '../../zero/home/disk-home.js';
import { tileSize } from '../../zero/home/tiles.js';
import type { Partition } from '../../zero/partition.js';
import { folderOf, requestsOf, warnWhereSlow } from './disk-file.js';

interface DiskStateOptions {
  config: ResolvedConfig;
  optimizer: Optimizer;
  partitions: readonly Partition[];
  device: Device;
  group: Collectives;
}

/**
 * Returns a home with an allocated file. Emits a warning if the disk is slow. Throws DS_IO if
 * nvme_path cannot be a folder or has too little space.
 */
export function openDiskHome(options: DiskStateOptions, ofOffloadedWeights: boolean): DiskHome {
  const { config, optimizer, partitions, device, group } = options;
  const folder = folderOf(config, 'offload_optimizer');
  const Kind = ofOffloadedWeights ? DiskHomeOfOffloadedWeights : DiskHome;
  const label = `optimizer state of rank ${group.rank}`;
  const place = { folder, label, ...requestsOf(config) };
  const home = new Kind(device, { optimizer, partitions, ...place, ...slotsOf(config) });
  warnWhereSlow('Optimizer state', folder, home.disk);
  return home;
}

function slotsOf({
  zero_optimization: { offload_optimizer: offload, sub_group_size: subGroup },
}: ResolvedConfig): Pick<DiskHomeOptions, 'tile' | 'slots'> {
  return {
    tile: tileSize(subGroup),
    slots: {
      count: offload.buffer_count,
      readsAhead: offload.pipeline_read ?? true,
      writesBehind: offload.pipeline_write ?? true,
    },
  };
}

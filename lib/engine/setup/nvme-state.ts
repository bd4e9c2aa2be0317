// Creates optimizer state on disk from the sections offload_optimizer and aio.
import type { ResolvedConfig } from '../../../types/config.js';
import type { Optimizer } from '../../optim/optimizer.js';
import type { Device } from '../../runtime/device.js';
import type { Collectives } from '../../zero/collectives.js';
import type { Partition } from '../../zero/partition.js';
import { NvmeState, type NvmeStateOptions } from '../../zero/state/placement/nvme.js';
import { tileSize } from '../../zero/state/tiles.js';
import { folderOf, requestsOf, warnWhereSlow } from './disk-file.js';

interface NvmeStateRequest {
  config: ResolvedConfig;
  optimizer: Optimizer;
  partitions: readonly Partition[];
  device: Device;
  group: Collectives;
}

/**
 * Returns state on disk with an allocated file. Emits a warning if the disk is slow. Throws DS_IO
 * if nvme_path cannot be a folder or has too little space.
 */
export function openNvmeState(options: NvmeStateRequest): NvmeState {
  const { config, optimizer, partitions, device, group } = options;
  const folder = folderOf(config, 'offload_optimizer');
  const label = `optimizer state of rank ${group.rank}`;
  const place = { folder, label, ...requestsOf(config) };
  const made = new NvmeState(device, { optimizer, partitions, ...place, ...slotsOf(config) });
  warnWhereSlow('Optimizer state', folder, made.disk);
  return made;
}

function slotsOf({
  zero_optimization: { offload_optimizer: offload, sub_group_size: subGroup },
}: ResolvedConfig): Pick<NvmeStateOptions, 'tile' | 'slots'> {
  return {
    tile: tileSize(subGroup),
    slots: {
      count: offload.buffer_count,
      readsAhead: offload.pipeline_read ?? true,
      writesBehind: offload.pipeline_write ?? true,
    },
  };
}

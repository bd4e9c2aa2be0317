// Creates weight storage on disk from the sections offload_param and aio.
import type { ResolvedConfig } from '../../../types/config.js';
import type { Device } from '../../runtime/device.js';
import type { Collectives } from '../../zero/collectives.js';
import { shardOf } from '../../zero/layout.js';
import { DiskWeights } from '../../zero/state/disk-weights.js';
import { tileSize } from '../../zero/state/tiles.js';
import type { WeightUnit } from '../../zero/weight-unit.js';
import { folderOf, requestsOf, warnWhereSlow } from './disk-file.js';

interface DiskWeightsRequest {
  config: ResolvedConfig;
  /** In forward order. */
  units: readonly WeightUnit[];
  device: Device;
  /** The shard group. */
  group: Collectives;
}

/**
 * Returns storage for a rank's shards in an allocated file or in host memory. Emits a warning if
 * the disk is slow. Throws DS_IO if nvme_path cannot be a folder or has too little space.
 */
export function openDiskWeights({ config, units, device, group }: DiskWeightsRequest): DiskWeights {
  const folder = folderOf(config, 'offload_param');
  const { offload_param: offload } = config.zero_optimization;
  const weights = new DiskWeights(device, {
    kept: units.map((unit) => {
      const { numel } = shardOf(unit.layout.numel, group.rank, group.size);
      return { unit, numel };
    }),
    maxInMemory: offload.max_in_cpu,
    slots: offload.buffer_count,
    slotNumel: tileSize(offload.buffer_size),
    ...{ folder, label: `weights of rank ${group.rank}`, ...requestsOf(config) },
  });
  if (weights.disk) warnWhereSlow('Weights', folder, weights.disk);
  return weights;
}

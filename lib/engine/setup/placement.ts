// Where the optimizer's state lives, from the offload_optimizer section: on the device, in host memory, or in both.
import type { ResolvedConfig } from '../../../types/config.js';
import { DsError } from '../../errors.js';
import { canSpeculate, type Optimizer } from '../../optim/optimizer.js';
import type { Device } from '../../runtime/device.js';
import { OffloadPlacement } from '../../zero/offload.js';
import { OffloadWeightsPlacement } from '../../zero/offload-weights.js';
import type { Partition } from '../../zero/partition.js';
import type { Placement } from '../../zero/placement.js';
import { ResidentPlacement } from '../../zero/resident.js';
import { ResidentHostWeightsPlacement } from '../../zero/resident-host-weights.js';
import { SpeculativeOffload } from '../../zero/speculative-offload.js';
import { firstInForward, SplitPlacement } from '../../zero/split-placement.js';
import { tileSize } from '../../zero/tiles.js';
import { gradientDType, weightDType } from './dtypes.js';
import { offloadsWeights } from './stage.js';

/** Throws DS_CONFIG when super_offload is asked of an optimizer that cannot try an update out. */
export function buildPlacement(
  config: ResolvedConfig,
  optimizer: Optimizer,
  partitions: readonly Partition[],
  device: Device,
): Placement {
  const { device: home, ratio } = config.zero_optimization.offload_optimizer;
  if (home !== 'cpu') {
    const Resident = offloadsWeights(config) ? ResidentHostWeightsPlacement : ResidentPlacement;
    return new Resident(device, optimizer);
  }
  const offload = buildOffload(config, optimizer, device);
  const resident = firstInForward(partitions, 1 - ratio);
  if (resident.size === 0) return offload;
  return new SplitPlacement(new ResidentPlacement(device, optimizer), offload, resident);
}

/**
 * Speculation overlaps host and device: on the CPU alone there is nothing to overlap. Its buffers hold gradients and
 * weights in turn, so that gradients of another dtype wait for their verdict (config rule speculationHasOneDtype).
 */
function buildOffload(config: ResolvedConfig, optimizer: Optimizer, device: Device): Placement {
  const { offload_optimizer: offload, sub_group_size: subGroup } = config.zero_optimization;
  const tile = tileSize(subGroup);
  if (offloadsWeights(config)) return new OffloadWeightsPlacement(device, optimizer, tile);
  const able = canSpeculate(optimizer) && gradientDType(config) === weightDType(config);
  const wanted = offload.super_offload ?? (able && device.kind !== 'cpu');
  if (!wanted) return new OffloadPlacement(device, optimizer, tile);
  if (able) return new SpeculativeOffload(device, optimizer, tile);
  throw new DsError({
    code: 'DS_CONFIG',
    op: 'zero_optimization.offload_optimizer.super_offload',
    expected: 'an optimizer whose update can be tried out, such as AdamW',
    got: optimizer.name,
    hint: 'Set super_offload to false, or leave it out.',
  });
}

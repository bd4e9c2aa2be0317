// When a configuration's state in host memory is updated, and whether its masters are kept in
// halves there.
import type { ResolvedConfig } from '../../../types/config.js';
import { canSpeculate, type Optimizer } from '../../optim/optimizer.js';
import { canSplit } from '../../optim/split-master.js';
import type { Device } from '../../runtime/device.js';
import { gradientDType, weightDType } from './dtypes.js';
import { offloadsWeights } from './stage.js';

interface Updated {
  config: ResolvedConfig;
  optimizer: Optimizer;
  device: Device;
}

/**
 * Whether updates of state in host memory are tried out during backward. That overlaps updates and
 * backward: on the CPU alone there is nothing to overlap. Its buffers hold gradients and weights in
 * turn, so that gradients of another dtype wait for the step decision (config rule
 * speculationHasOneDtype), as weights on a disk do.
 */
export function speculates({ config, optimizer, device }: Updated): boolean {
  const able = canSpeculate(optimizer) && gradientDType(config) === weightDType(config);
  const { offload_optimizer: state, offload_param: param } = config.zero_optimization;
  const isOnDisk = offloadsWeights(config) && param.device !== 'cpu';
  return (state.super_offload ?? (able && device.kind !== 'cpu')) && !isOnDisk;
}

/**
 * Whether bf16 weights are the upper halves of masters in host memory. Weights that are tried out
 * are a step ahead of the masters.
 */
export function splitsMasters(given: Updated): boolean {
  return splitsStreamed(given) && !speculates(given);
}

/**
 * Whether masters in host memory that the device updates are in halves: of weights that are tried
 * out it keeps the upper ones beside them. What is on a disk comes and goes in whole tiles.
 */
export function splitsStreamed({ config, optimizer }: Updated): boolean {
  const { offload_optimizer: state, offload_param: param } = config.zero_optimization;
  const inMemory = state.device === 'cpu' && !(offloadsWeights(config) && param.device !== 'cpu');
  return inMemory && weightDType(config) === 'bf16' && canSplit(optimizer);
}

// Decides if updates in host memory are speculative, and if masters there are split.
import type { ResolvedConfig } from '../../../types/config.js';
import { canSpeculate, type Optimizer } from '../../optim/optimizer.js';
import { canSplit } from '../../optim/split-master.js';
import type { Device } from '../../runtime/device.js';
import { gradientDType, weightDType } from './precision.js';
import { offloadsWeights } from './stage.js';

interface Updated {
  config: ResolvedConfig;
  optimizer: Optimizer;
  device: Device;
}

/**
 * Whether updates of state in host memory are speculative, during backward. On a CPU device there
 * is nothing to overlap. Speculation uses its buffers for gradients and weights in turn, so
 * gradients of another dtype prevent it (config rule speculationHasOneDtype), and weights on a disk
 * too.
 */
export function speculates({ config, optimizer, device }: Updated): boolean {
  const able = canSpeculate(optimizer) && gradientDType(config) === weightDType(config);
  const { offload_optimizer: state, offload_param: param } = config.zero_optimization;
  const isOnDisk = offloadsWeights(config) && param.device !== 'cpu';
  return (state.super_offload ?? (able && device.kind !== 'cpu')) && !isOnDisk;
}

/**
 * Whether bf16 weights are the upper halves of masters in host memory. Speculative weights are one
 * step ahead of the masters, so they cannot be.
 */
export function splitsMasters(given: Updated): boolean {
  return splitsStreamed(given) && !speculates(given);
}

/**
 * Whether masters in host memory that the device updates are split. With speculation, the device
 * stores the upper halves in addition to the weights. State on a disk moves in whole tiles, so it
 * is never split.
 */
export function splitsStreamed({ config, optimizer }: Updated): boolean {
  const { offload_optimizer: state, offload_param: param } = config.zero_optimization;
  const inMemory = state.device === 'cpu' && !(offloadsWeights(config) && param.device !== 'cpu');
  return inMemory && weightDType(config) === 'bf16' && canSplit(optimizer);
}

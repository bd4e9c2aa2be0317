// Counts bytes that a run needs for any batch: weights, gradients and optimizer state, by location.
import type { ResolvedConfig } from '../../../types/config.js';
import type { Module } from '../../nn/module.js';
import type { Parameter } from '../../nn/parameter.js';
import { declaredState } from '../../optim/declared-state.js';
import type { Optimizer } from '../../optim/optimizer.js';
import { LOWER_HALF } from '../../optim/split-master.js';
import { dtypeSize } from '../../runtime/dtype.js';
import { numel } from '../../runtime/view.js';
import { gradientDType, weightDType } from './precision.js';

/** Bytes by purpose. */
export type Parts = Readonly<Record<string, number>>;

/** Bytes of one rank. */
export interface CertainBytes {
  device: Parts;
  /** Bytes in host memory. If the device is the CPU, its bytes come in addition. */
  host: Parts;
  /** By folder of the file. */
  disk: Readonly<Record<string, number>>;
  /** Bytes of the model in host memory now, which are freed when it moves. */
  returned: number;
}

export interface Counted {
  module: Module;
  config: ResolvedConfig;
  optimizer: Optimizer;
  /**
   * Whether the device may update a share of the state in host memory. It then stores gradients.
   */
  hasGpuShare: boolean;
  /** Whether bf16 weights are the upper halves of masters in host memory: see splitsMasters(). */
  splitsMasters: boolean;
  /** Ranks of the shard group, which divide state, and at stage 3 weights. */
  shards: number;
}

/** Sums over the parameters, over all ranks of the shard group. */
interface Sums {
  weights: number;
  gradients: number;
  /** Bytes of master weights in host memory. */
  master: number;
  /** Bytes of masters of 16-bit weights. On the device, f32 weights are their own masters. */
  separateMaster: number;
  state: number;
  returned: number;
  /** Bytes per element of the widest and of the narrowest weights. */
  widest: number;
  narrowest: number;
}

export const sumOf = (parts: Parts): number =>
  Object.values(parts).reduce((sum, bytes) => sum + bytes, 0);

/** Counts certain bytes. Padding, buckets, windows and activations are not included. */
export function certainBytes(counted: Counted): CertainBytes {
  const { config, shards, hasGpuShare } = counted;
  const { stage, offload_optimizer: optimizer, offload_param: param } = config.zero_optimization;
  const sums = sumsOf(counted);
  const fraction = stage === 0 ? 1 : 1 / shards;
  const [far, near] = awayOf(counted);
  const weights = sums.weights * (stage === 3 ? fraction : 1);
  const isAway = stage === 3 && param.device !== 'none';
  const hostState = (sums.master + sums.state) * fraction * far;
  const [inMemory, isStateOnDisk] = [optimizer.device === 'cpu', optimizer.device === 'nvme'];
  // The device stores gradients only for state in host memory that it updates.
  const parksGradients = isStateOnDisk || (inMemory && !hasGpuShare);
  const onDisk: Record<string, number> = {};
  const put = (folder: string | null, bytes: number): void => {
    if (folder !== null && bytes > 0) onDisk[folder] = (onDisk[folder] ?? 0) + bytes;
  };
  if (isStateOnDisk) put(optimizer.nvme_path, hostState);
  if (isAway && param.device === 'nvme') {
    put(param.nvme_path, weights - param.max_in_cpu * sums.widest);
  }
  return {
    device: {
      weights: isAway ? 0 : weights,
      gradients: sums.gradients * fraction * near,
      'master weights and optimizer state': (sums.separateMaster + sums.state) * fraction * near,
    },
    host: {
      'master weights and optimizer state': inMemory ? hostState : 0,
      'gradients on their way': parksGradients ? sums.gradients * fraction * far : 0,
      weights: isAway ? weightsInMemory(counted, weights, sums.narrowest) : 0,
    },
    disk: onDisk,
    returned: sums.returned,
  };
}

/** Bytes of a rank's offloaded weights that stay in host memory. Whole units move to the disk. */
function weightsInMemory(
  { module, config, shards }: Counted,
  weights: number,
  narrowest: number,
): number {
  const { device, max_in_cpu: most } = config.zero_optimization.offload_param;
  if (device === 'cpu' || weights === 0) return weights;
  const left = largestUnit(module, ({ numel }) => numel) / shards;
  return Math.min(weights, Math.max(0, most - left) * narrowest);
}

/**
 * Returns the minimum shares of the state off the device and on it. Whole units are divided, so the
 * largest unit may be on either side.
 */
function awayOf({ module, config, optimizer }: Counted): [away: number, onDevice: number] {
  const { device, ratio } = config.zero_optimization.offload_optimizer;
  if (device === 'none') return [0, 1];
  if (ratio === 1) return [1, 0];
  const trained = new Set<unknown>(optimizer.groups.flatMap(({ params }) => params));
  const count = (one: Parameter): number => (one.requiresGrad && trained.has(one) ? one.numel : 0);
  const all = module.parameters().reduce((sum, one) => sum + count(one), 0);
  const slack = all === 0 ? 1 : largestUnit(module, count) / all;
  return [Math.max(0, ratio - slack), Math.max(0, 1 - ratio - slack)];
}

/** Returns the maximum of `count` over the units. */
function largestUnit(module: Module, count: (parameter: Parameter) => number): number {
  const units = module.units().map((unit) => unit.module.parameters());
  const owned = new Set(units.flat());
  const root = module.parameters().filter((one) => !owned.has(one));
  return Math.max(
    ...[root, ...units].map((parameters) => parameters.reduce((sum, one) => sum + count(one), 0)),
  );
}

function sumsOf({ module, config, optimizer, splitsMasters }: Counted): Sums {
  const groupOf = new Map<unknown, number>();
  for (const [group, { params }] of optimizer.groups.entries()) {
    for (const parameter of params) groupOf.set(parameter, group);
  }
  const sums: Sums = {
    ...{ weights: 0, gradients: 0, master: 0, separateMaster: 0, state: 0, returned: 0 },
    ...{ widest: 0, narrowest: Number.POSITIVE_INFINITY },
  };
  for (const parameter of module.parameters()) {
    const dtype = parameter.fixedDtype ?? weightDType(config);
    sums.weights += parameter.numel * dtypeSize(dtype);
    sums.widest = Math.max(sums.widest, dtypeSize(dtype));
    sums.narrowest = Math.min(sums.narrowest, dtypeSize(dtype));
    const isMade = parameter.isMaterialized && parameter.missing === null;
    if (isMade && parameter.device.kind === 'cpu') sums.returned += parameter.bytes;
    const group = groupOf.get(parameter);
    if (group === undefined || !parameter.requiresGrad) continue;
    sums.gradients +=
      parameter.numel * Math.min(dtypeSize(dtype), dtypeSize(gradientDType(config)));
    const master = parameter.numel * dtypeSize('f32');
    sums.master += splitsMasters && dtype === 'bf16' ? parameter.numel * LOWER_HALF : master;
    if (dtype !== 'f32') sums.separateMaster += master;
    const declared = Object.values(declaredState(optimizer, group, parameter.shape));
    for (const { shape, dtype: kept } of declared) sums.state += numel(shape) * dtypeSize(kept);
  }
  return sums;
}

// Where the optimizer's state lives and when it is updated, from the configuration: on the device,
// in host memory or on disk, or in two of them.
import type { ResolvedConfig } from '../../../types/config.js';
import { DsError } from '../../errors.js';
import { canExchange } from '../../optim/exchange.js';
import { canGather, canSpeculate, canSum, type Optimizer } from '../../optim/optimizer.js';
import type { Device } from '../../runtime/device.js';
import type { Collectives } from '../../zero/collectives.js';
import { DeviceHome, DeviceHomeOfOffloadedWeights } from '../../zero/home/device-home.js';
import type { Home } from '../../zero/home/home.js';
import { HostHome, HostHomeOfOffloadedWeights } from '../../zero/home/host-home.js';
import { StreamedHome, StreamedHomeOfOffloadedWeights } from '../../zero/home/streamed-home.js';
import { isByElement, tileSize } from '../../zero/home/tiles.js';
import { evenlySpread, firstInForward, type OptimizerState } from '../../zero/optimizer-state.js';
import type { Partition } from '../../zero/partition.js';
import { Deferred } from '../../zero/schedule/deferred.js';
import { ExchangedUpdates } from '../../zero/schedule/exchanged-updates.js';
import { GatheredUpdates } from '../../zero/schedule/gathered-updates.js';
import type { Schedule } from '../../zero/schedule/schedule.js';
import { Speculative } from '../../zero/schedule/speculative.js';
import { SummedUpdates } from '../../zero/schedule/summed-updates.js';
import type { ReleaseStack } from '../release-stack.js';
import { openDiskHome } from './disk-home.js';
import { gradientDType, weightDType } from './dtypes.js';
import { findGpuShare } from './gpu-share.js';
import { offloadsWeights } from './stage.js';
import { cutParameter } from './whole-parameters.js';

/** What state is made for. */
export interface StateOptions {
  config: ResolvedConfig;
  optimizer: Optimizer;
  /** In forward order. */
  partitions: readonly Partition[];
  device: Device;
  /** The ranks that share units out. */
  group: Collectives;
}

/**
 * Adds to `state` a share for each home; `owned` gets what is made. Throws DS_CONFIG when
 * super_offload is asked of an optimizer that cannot try an update out, DS_IO when a disk has no
 * room for what is to be on it.
 */
export function furnish(state: OptimizerState, options: StateOptions, owned: ReleaseStack): void {
  const { config, optimizer, partitions, device } = options;
  const { device: home, ratio } = config.zero_optimization.offload_optimizer;
  const isOffloaded = home !== 'none';
  const first = isOffloaded ? firstInForward(partitions, 1 - ratio) : new Set(partitions);
  const resident = partitions.filter((partition) => first.has(partition));
  const rest = partitions.filter((partition) => !first.has(partition));
  if (!isOffloaded || resident.length > 0) {
    const Kind =
      offloadsWeights(config) && !isOffloaded ? DeviceHomeOfOffloadedWeights : DeviceHome;
    const made = owned.own(new Kind(device, optimizer));
    const schedule = owned.own(afterVerdict(made, resident, options));
    state.add({ partitions: resident, home: made, schedule });
  }
  if (home === 'cpu') addOffloaded(state, { ...options, partitions: rest }, owned);
  if (home === 'nvme') addOnDisk(state, { ...options, partitions: rest }, owned);
}

/**
 * State on disk is updated once per step, after its verdict: to try an update out would read and
 * write it twice.
 */
function addOnDisk(state: OptimizerState, options: StateOptions, owned: ReleaseStack): void {
  const { config, partitions } = options;
  const home = owned.own(openDiskHome(options, offloadsWeights(config)));
  const schedule = owned.own(afterVerdict(home, partitions, options));
  state.add({ partitions, home, schedule });
}

/**
 * Both processors update state in host memory: the device the partitions of gpu_share, host threads
 * the rest.
 */
function addOffloaded(state: OptimizerState, options: StateOptions, owned: ReleaseStack): void {
  const { config, partitions } = options;
  const onDevice = evenlySpread(partitions, streamedShare(options));
  const streamed = partitions.filter((partition) => onDevice.has(partition));
  const rest = partitions.filter((partition) => !onDevice.has(partition));
  const ofOffloadedWeights = offloadsWeights(config);
  if (streamed.length > 0) {
    const Kind = ofOffloadedWeights ? StreamedHomeOfOffloadedWeights : StreamedHome;
    addInHostMemory(state, { ...options, partitions: streamed, Kind }, owned);
  }
  if (streamed.length === 0 || rest.length > 0) {
    const Kind = ofOffloadedWeights ? HostHomeOfOffloadedWeights : HostHome;
    addInHostMemory(state, { ...options, partitions: rest, Kind }, owned);
  }
}

/**
 * Speculation overlaps updates and backward: on the CPU alone there is nothing to overlap. Its
 * buffers hold gradients and weights in turn, so that gradients of another dtype wait for their
 * verdict (config rule speculationHasOneDtype).
 */
function addInHostMemory(
  state: OptimizerState,
  { Kind, ...options }: StateOptions & { Kind: typeof HostHome },
  owned: ReleaseStack,
): void {
  const { config, optimizer, partitions, device } = options;
  const { offload_optimizer: offload, sub_group_size: subGroup } = config.zero_optimization;
  const tile = tileSize(subGroup);
  const able = canSpeculate(optimizer) && gradientDType(config) === weightDType(config);
  const wanted = offload.super_offload ?? (able && device.kind !== 'cpu');
  if (wanted && !offloadsWeights(config)) {
    if (!able) throw cannotSpeculate(optimizer);
    const home = owned.own(new Kind(device, optimizer, { tile, readBefore: true }));
    const schedule = owned.own(new Speculative(device, home, optimizer));
    state.add({ partitions, home, schedule });
    return;
  }
  const home = owned.own(new Kind(device, optimizer, { tile }));
  const schedule = owned.own(afterVerdict(home, partitions, options));
  state.add({ partitions, home, schedule });
}

/** Throws DS_CONFIG when gpu_share is asked of an optimizer that looks at whole parameters. */
function streamedShare({ config, optimizer, partitions, device, group }: StateOptions): number {
  const { gpu_share: share } = config.zero_optimization.offload_optimizer;
  const able =
    partitions.every((partition) => isByElement(optimizer, partition)) &&
    !(canExchange(optimizer) && group.size > 1);
  if (able) return share ?? findGpuShare({ device, optimizer, partitions, group });
  if (!share) return 0;
  throw new DsError({
    code: 'DS_CONFIG',
    op: 'zero_optimization.offload_optimizer.gpu_share',
    expected: 'an optimizer that updates each element by itself, such as AdamW',
    got: `${optimizer.name}, and gpu_share ${share}`,
    hint: 'Leave gpu_share out: host threads then update all of the state.',
  });
}

/**
 * How an update goes over `partitions`: in one pass, or in several between which ranks share what
 * they know.
 */
function afterVerdict(
  home: Home,
  partitions: readonly Partition[],
  { config, optimizer, group }: StateOptions,
): Schedule {
  const { stage, reduce_bucket_size: bucketElements } = config.zero_optimization;
  if (canExchange(optimizer) && group.size > 1) {
    return new ExchangedUpdates(optimizer, { home, partitions, group, bucketElements });
  }
  const units = partitions.map(({ unit }) => unit);
  const cut = cutParameter(optimizer, units, { stage, shards: group.size });
  if (cut === null) return new Deferred(home, optimizer, partitions);
  const parts = { home, partitions, group };
  if (canGather(optimizer)) return new GatheredUpdates(optimizer, parts);
  if (canSum(optimizer)) return new SummedUpdates(optimizer, parts);
  return new Deferred(home, optimizer, partitions);
}

function cannotSpeculate(optimizer: Optimizer): DsError {
  return new DsError({
    code: 'DS_CONFIG',
    op: 'zero_optimization.offload_optimizer.super_offload',
    expected: 'an optimizer whose update can be tried out, such as AdamW',
    got: optimizer.name,
    hint: 'Set super_offload to false, or leave it out.',
  });
}

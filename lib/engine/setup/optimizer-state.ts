// Selects where optimizer state is stored (device, host memory, disk, or two of them), and when it
// is updated.
import type { ResolvedConfig } from '../../../types/config.js';
import { DsError } from '../../errors.js';
import { canExchange } from '../../optim/exchange.js';
import {
  canGather,
  canSpeculate,
  canSum,
  type Optimizer,
  type SpeculativeOptimizer,
} from '../../optim/optimizer.js';
import { SplitMaster, type SplittingOptimizer } from '../../optim/split-master.js';
import type { Device } from '../../runtime/device.js';
import type { Collectives } from '../../zero/collectives.js';
import { DeviceHome, DeviceHomeOfOffloadedWeights } from '../../zero/home/device-home.js';
import type { Home } from '../../zero/home/home.js';
import {
  HostHome,
  HostHomeOfOffloadedWeights,
  type HostHomeOptions,
} from '../../zero/home/host-home.js';
import { SplitHome, SplitHomeOfOffloadedWeights } from '../../zero/home/split-home.js';
import { StreamedHome, StreamedHomeOfOffloadedWeights } from '../../zero/home/streamed-home.js';
import {
  StreamedJoinedHome,
  StreamedJoinedHomeOfOffloadedWeights,
} from '../../zero/home/streamed-joined-home.js';
import {
  StreamedSplitHome,
  StreamedSplitHomeOfOffloadedWeights,
} from '../../zero/home/streamed-split-home.js';
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
import { findGpuShare, type ShareOptions } from './gpu-share.js';
import { speculates, splitsMasters, splitsStreamed } from './master-halves.js';
import { offloadsWeights } from './stage.js';
import { cutParameter } from './whole-parameters.js';

export interface StateOptions {
  config: ResolvedConfig;
  optimizer: Optimizer;
  /** In forward order. */
  partitions: readonly Partition[];
  device: Device;
  /** The shard group. */
  group: Collectives;
}

/**
 * Adds one share per home to `state`; `owned` takes ownership. Throws DS_CONFIG if super_offload is
 * true for an optimizer without speculative updates, and DS_IO if a disk lacks space.
 */
export function buildState(
  state: OptimizerState,
  options: StateOptions,
  owned: ReleaseStack,
): void {
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
    const schedule = owned.own(afterDecision(made, resident, options));
    state.add({ partitions: resident, home: made, schedule });
  }
  // With ratio 0, nothing is left.
  if (rest.length === 0) return;
  if (home === 'cpu') addOffloaded(state, { ...options, partitions: rest }, owned);
  if (home === 'nvme') addOnDisk(state, { ...options, partitions: rest }, owned);
}

/**
 * State on disk is updated once per step, after the step decision. Speculation would read and write
 * it twice.
 */
function addOnDisk(state: OptimizerState, options: StateOptions, owned: ReleaseStack): void {
  const { config, partitions } = options;
  const home = owned.own(openDiskHome(options, offloadsWeights(config)));
  const schedule = owned.own(afterDecision(home, partitions, options));
  state.add({ partitions, home, schedule });
}

/**
 * Two processors update state in host memory: the device updates the partitions of gpu_share, CPU
 * threads the rest.
 */
function addOffloaded(state: OptimizerState, options: StateOptions, owned: ReleaseStack): void {
  const { partitions } = options;
  const onDevice = evenlySpread(partitions, streamedShare(options));
  const streamed = partitions.filter((partition) => onDevice.has(partition));
  const rest = partitions.filter((partition) => !onDevice.has(partition));
  const threads = offloadsWeights(options.config) ? threadsForOffloadedWeights : hostThreads;
  const device = offloadsWeights(options.config) ? deviceForOffloadedWeights : streaming;
  if (streamed.length > 0) {
    addInHostMemory(state, { ...options, partitions: streamed, kinds: device }, owned);
  }
  if (streamed.length === 0 || rest.length > 0) {
    addInHostMemory(state, { ...options, partitions: rest, kinds: threads }, owned);
  }
}

type SplitKind = new (device: Device, rule: SplitMaster, options: HostHomeOptions) => HostHome;

/** Home classes in host memory for one updating processor. */
interface HomeKinds {
  /** For f32 masters. */
  whole: typeof HostHome;
  /** For split masters, updated after the step decision. */
  split: SplitKind;
  /** For split masters with speculative updates; null if that gains nothing. */
  tried: SplitKind | null;
}

const hostThreads: HomeKinds = { whole: HostHome, split: SplitHome, tried: null };
const streaming: HomeKinds = {
  ...{ whole: StreamedHome, split: StreamedSplitHome, tried: StreamedJoinedHome },
};
const threadsForOffloadedWeights: HomeKinds = {
  ...{ whole: HostHomeOfOffloadedWeights, split: SplitHomeOfOffloadedWeights, tried: null },
};
const deviceForOffloadedWeights: HomeKinds = {
  whole: StreamedHomeOfOffloadedWeights,
  ...{ split: StreamedSplitHomeOfOffloadedWeights, tried: StreamedJoinedHomeOfOffloadedWeights },
};

function addInHostMemory(
  state: OptimizerState,
  { kinds, ...options }: StateOptions & { kinds: HomeKinds },
  owned: ReleaseStack,
): void {
  if (speculates(options)) addTried(state, { ...options, kinds }, owned);
  else addAfterDecision(state, { ...options, kinds }, owned);
}

/** Adds homes with speculative updates. */
function addTried(
  state: OptimizerState,
  { kinds, ...options }: StateOptions & { kinds: HomeKinds },
  owned: ReleaseStack,
): void {
  const { config, optimizer, device } = options;
  if (!canSpeculate(optimizer)) throw cannotSpeculate(optimizer);
  const how = { tile: tileSize(config.zero_optimization.sub_group_size), readBefore: true };
  const add = (home: HostHome, partitions: readonly Partition[]): void => {
    const schedule = owned.own(new Speculative(device, owned.own(home), optimizer));
    state.add({ partitions, home, schedule });
  };
  const { tried: Split, whole: Whole } = kinds;
  const [split, whole] = bySplitting(options, Split !== null && splitsStreamed(options));
  if (Split && split.length > 0) {
    add(new Split(device, new SplitMaster(optimizer as Tried), how), split);
  }
  if (split.length === 0 || whole.length > 0) add(new Whole(device, optimizer, how), whole);
}

type Tried = SpeculativeOptimizer & SplittingOptimizer;

function addAfterDecision(
  state: OptimizerState,
  { kinds, ...options }: StateOptions & { kinds: HomeKinds },
  owned: ReleaseStack,
): void {
  const { config, optimizer, device } = options;
  const tile = tileSize(config.zero_optimization.sub_group_size);
  const [split, whole] = bySplitting(options, splitsMasters(options));
  if (split.length > 0) {
    const rule = new SplitMaster(optimizer as SplittingOptimizer);
    const home = owned.own(new kinds.split(device, rule, { tile }));
    const schedule = owned.own(new Deferred(home, rule, split));
    state.add({ partitions: split, home, schedule });
  }
  if (split.length === 0 || whole.length > 0) {
    const home = owned.own(new kinds.whole(device, optimizer, { tile }));
    const schedule = owned.own(afterDecision(home, whole, { ...options, partitions: whole }));
    state.add({ partitions: whole, home, schedule });
  }
}

/** Returns partitions with split masters (bf16 units, if `able`), and the rest. */
function bySplitting(
  { partitions }: StateOptions,
  able: boolean,
): [split: Partition[], whole: Partition[]] {
  const splits = ({ unit }: Partition): boolean => able && unit.dtype === 'bf16';
  return [partitions.filter(splits), partitions.filter((one) => !splits(one))];
}

/** Throws DS_CONFIG if gpu_share is set for an optimizer that needs whole parameters. */
function streamedShare(options: StateOptions): number {
  const { config, optimizer, partitions, group } = options;
  const { gpu_share: share } = config.zero_optimization.offload_optimizer;
  const able =
    partitions.every((partition) => isByElement(optimizer, partition)) &&
    !(canExchange(optimizer) && group.size > 1);
  if (able) return share ?? findGpuShare({ ...options, ...streamedState(options) });
  if (!share) return 0;
  throw new DsError({
    code: 'DS_CONFIG',
    op: 'zero_optimization.offload_optimizer.gpu_share',
    expected: 'an elementwise optimizer, such as AdamW',
    got: `${optimizer.name}, and gpu_share ${share}`,
    hint: 'Remove gpu_share: CPU threads then update all of the state.',
  });
}

/** Returns the bytes that the device streams and keeps for the state that it updates. */
function streamedState(
  options: StateOptions,
): Omit<ShareOptions, 'device' | 'partitions' | 'group'> {
  const { config, optimizer } = options;
  const offloads = offloadsWeights(config);
  const splits = splitsStreamed(options);
  const tries = speculates(options);
  // Speculation with split masters keeps the weights on the device.
  const joins = tries && splits;
  const gathers = offloads && !joins;
  const gradients = tries ? 2 : splits ? 0 : 1;
  const shardsGradients = config.zero_optimization.stage >= 2;
  const beside = joins ? (offloads ? 4 : 2) : 0;
  const kept = { gathers, gradients, shardsGradients, beside } as const;
  if (!splits) return { ...kept, optimizer, master: 4 };
  const split = new SplitMaster(optimizer as SplittingOptimizer);
  return { ...kept, optimizer: split, master: gathers ? 2 : 0 };
}

/**
 * Returns the schedule of `partitions`: one pass, or several passes with an exchange between ranks.
 */
function afterDecision(
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
    expected: 'an optimizer with speculative updates, such as AdamW',
    got: optimizer.name,
    hint: 'Set super_offload to false, or remove it.',
  });
}

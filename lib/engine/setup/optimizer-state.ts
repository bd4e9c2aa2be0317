// Chooses where optimizer state is stored (device, host memory, disk, or two of them), and the
// schedule of its updates.
import type { ResolvedConfig } from '../../../types/config.js';
import { canExchange } from '../../optim/exchange.js';
import {
  canGather,
  canSpeculate,
  canSum,
  type SpeculativeOptimizer,
} from '../../optim/optimizer.js';
import { SplitMaster, type SplittingOptimizer } from '../../optim/split-master.js';
import type { StateChoice } from '../../plan/footprint.js';
import { findGpuShare } from '../../plan/gpu-share.js';
import { chooseStrategies, factsOf, type Setup, setupOfConfig } from '../../plan/index.js';
import { configError } from '../../runtime/input-errors.js';
import { DeferredUpdates, type OptimizerState } from '../../zero/optimizer-state.js';
import type { Partition } from '../../zero/partition.js';
import { ExchangedUpdates } from '../../zero/schedule/exchanged-updates.js';
import { GatheredUpdates } from '../../zero/schedule/gathered-updates.js';
import { Speculative } from '../../zero/schedule/speculative.js';
import { SummedUpdates } from '../../zero/schedule/summed-updates.js';
import { OffloadedWeights } from '../../zero/state/offloaded-weights.js';
import { DeviceState } from '../../zero/state/placement/device.js';
import { HostState, type HostStateOptions } from '../../zero/state/placement/host.js';
import { StreamedState } from '../../zero/state/placement/streamed.js';
import { DeviceWeights, F32Masters, ShardState } from '../../zero/state/shard-state.js';
import { JoinedMasters, SplitMasters } from '../../zero/state/split-masters.js';
import type { Masters, Placement, Schedule } from '../../zero/state/strategies.js';
import { isByElement, tileSize } from '../../zero/state/tiles.js';
import { LARGEST_SLOT, WeightSlots } from '../../zero/state/weight-slots.js';
import type { ReleaseStack } from '../release-stack.js';
import { openNvmeState, type StateOptions } from './disk-storage.js';
import { findCutParameter } from './optimizer-needs.js';
import { offloadsWeights } from './stage.js';

/**
 * Selects partitions with about `share` of all elements. They are spread evenly over forward, so
 * that two processors can work in parallel. The first partition is selected if it is not larger
 * than the share: its gradient comes last, and its weights are needed first.
 */
export function selectEvenly(
  partitions: readonly Partition[],
  share: number,
): ReadonlySet<Partition> {
  const selected = new Set<Partition>();
  const total = partitions.reduce((sum, { numel }) => sum + numel, 0);
  const first = partitions[0]?.numel ?? 0;
  let owed = first <= share * total ? Math.max(0, (0.5 - share) * first) : 0;
  for (const partition of partitions) {
    owed += share * partition.numel;
    if (owed < partition.numel / 2) continue;
    owed -= partition.numel;
    selected.add(partition);
  }
  return selected;
}

/**
 * Selects the partitions with state on the device: the first ones in forward order, with at most
 * `share` of all elements. The host could not update these while other work runs. Source:
 * DeepSpeed's offload_optimizer.ratio (ZeRO-Offload++, "Twin-Flow").
 */
export function selectFirst(
  partitions: readonly Partition[],
  share: number,
): ReadonlySet<Partition> {
  const total = partitions.reduce((sum, { numel }) => sum + numel, 0);
  const selected = new Set<Partition>();
  let elements = 0;
  for (const partition of partitions) {
    elements += partition.numel;
    if (elements > share * total) break;
    selected.add(partition);
  }
  return selected;
}

/**
 * Adds the state of some partitions and its schedule to the OptimizerState. Takes ownership of
 * both.
 */
type Add = <State extends ShardState>(
  partitions: readonly Partition[],
  made: State,
  scheduleOf: (made: State) => Schedule,
) => void;

/**
 * Creates states and schedules as configured, and adds them to `state`. `owned` takes ownership.
 * Throws DS_CONFIG if super_offload is set and the optimizer cannot speculate; throws DS_IO.
 */
export function buildState(
  state: OptimizerState,
  options: StateOptions,
  owned: ReleaseStack,
): void {
  const { config, optimizer, partitions, device } = options;
  const { device: storage, ratio } = config.zero_optimization.offload_optimizer;
  const first = storage === 'none' ? new Set(partitions) : selectFirst(partitions, 1 - ratio);
  const [resident, offloadedPartitions] = divide(partitions, (partition) => first.has(partition));
  const add: Add = (chosen, made, scheduleOf) => {
    const schedule = owned.own(scheduleOf(owned.own(made)));
    state.add({ partitions: chosen, state: made, schedule });
  };
  const addDeferred = (chosen: readonly Partition[], placement: Placement): void =>
    add(chosen, createShardState(config, placement), (made) =>
      createDeferred(made, chosen, options),
    );
  if (storage === 'none' || resident.length > 0) {
    addDeferred(resident, new DeviceState(device, optimizer));
  }
  // With ratio 0, all state is on the device.
  if (offloadedPartitions.length === 0) return;
  const offloaded = { ...options, partitions: offloadedPartitions };
  if (storage === 'cpu') addOffloaded(add, offloaded);
  // State on a disk is updated once per step, because speculation would read and write it twice.
  if (storage === 'nvme') addDeferred(offloadedPartitions, openNvmeState(offloaded));
}

function divide(
  partitions: readonly Partition[],
  isFirst: (partition: Partition) => boolean,
): [first: Partition[], rest: Partition[]] {
  return [partitions.filter(isFirst), partitions.filter((partition) => !isFirst(partition))];
}

/** Creates a ShardState. Its target of updated weights follows the configuration. */
function createShardState<P extends Placement>(
  config: ResolvedConfig,
  placement: P,
  masters: Masters = new F32Masters(placement),
): ShardState<P> {
  const Target = offloadsWeights(config) ? OffloadedWeights : DeviceWeights;
  return new ShardState(placement, masters, new Target(placement, masters));
}

/** The placements of state in host memory: CPU threads or the device update it. */
type Processor = typeof HostState | typeof StreamedState;

/**
 * Adds state in host memory. The device updates the partitions of gpu_share, CPU threads the
 * others.
 */
function addOffloaded(add: Add, options: StateOptions): void {
  const { partitions } = options;
  const onDevice = selectEvenly(partitions, streamedShare(options));
  const [streamed, onHost] = divide(partitions, (partition) => onDevice.has(partition));
  const addTo = setupOf(options).speculates ? addSpeculative : addDeferredState;
  if (streamed.length > 0) {
    addTo(add, { ...options, partitions: streamed, Processor: StreamedState });
  }
  if (streamed.length === 0 || onHost.length > 0) {
    addTo(add, { ...options, partitions: onHost, Processor: HostState });
  }
}

interface ProcessorOptions extends StateOptions {
  Processor: Processor;
}

/**
 * Adds states with speculative updates. Partitions that the device updates may have split masters.
 */
function addSpeculative(add: Add, { Processor, ...options }: ProcessorOptions): void {
  const { config, optimizer, device } = options;
  if (!canSpeculate(optimizer)) {
    throw configError(
      'zero_optimization.offload_optimizer.super_offload',
      'an optimizer with speculative updates, such as AdamW',
      optimizer.name,
      'Set super_offload to false, or remove it.',
    );
  }
  const hostOptions = { tile: tileSize(config.zero_optimization.sub_group_size), readBefore: true };
  const schedule = (made: ShardState<HostState | StreamedState>): Schedule =>
    new Speculative(device, made, optimizer);
  const [split, whole] = divideBySplitting(options, mastersFor(Processor, options) === 'joined');
  if (split.length > 0) {
    const rule = new SplitMaster(optimizer as SpeculativeOptimizer & SplittingOptimizer);
    const placement = new Processor(device, rule, hostOptions);
    const masters = new JoinedMasters(device, rule, placement);
    add(split, createShardState(config, placement, masters), schedule);
  }
  if (split.length === 0 || whole.length > 0) {
    add(whole, createShardState(config, new Processor(device, optimizer, hostOptions)), schedule);
  }
}

function addDeferredState(add: Add, { Processor, ...options }: ProcessorOptions): void {
  const { config, optimizer, device } = options;
  const tile = tileSize(config.zero_optimization.sub_group_size);
  const [split, whole] = divideBySplitting(options, mastersFor(Processor, options) === 'split');
  if (split.length > 0) {
    const rule = new SplitMaster(optimizer as SplittingOptimizer);
    const made = createSplitState(rule, { ...options, Processor });
    add(split, made, () => new DeferredUpdates(made, rule, split));
  }
  if (split.length === 0 || whole.length > 0) {
    const made = createShardState(config, new Processor(device, optimizer, { tile }));
    add(whole, made, () => createDeferred(made, whole, options));
  }
}

/**
 * Creates a state with split masters. If CPU threads update weights on the device, it uses slots.
 */
function createSplitState(rule: SplitMaster, { Processor, config, device }: ProcessorOptions) {
  const tile = tileSize(config.zero_optimization.sub_group_size);
  if (Processor === StreamedState || offloadsWeights(config)) {
    const placement = new Processor(device, rule, { tile });
    return createShardState(config, placement, new SplitMasters(device, rule, placement));
  }
  const hostOptions: HostStateOptions = { tile: Math.min(tile, LARGEST_SLOT) };
  const placement = new HostState(device, rule, hostOptions);
  const { d2h: down, order: updates, h2d: up } = placement.traffic;
  const slots = new WeightSlots(device, { down, updates, up });
  return createShardState(config, placement, new SplitMasters(device, rule, placement, slots));
}

/** Returns the partitions that can have split masters (bf16 units, if `able`), and the others. */
const divideBySplitting = ({ partitions }: StateOptions, able: boolean) =>
  divide(partitions, ({ unit }) => able && unit.dtype === 'bf16');

/**
 * Returns the share of partitions that the device updates. Throws DS_CONFIG if gpu_share is set and
 * the optimizer needs whole parameters.
 */
function streamedShare(options: StateOptions): number {
  const { config, optimizer, partitions, group } = options;
  const { gpu_share: share } = config.zero_optimization.offload_optimizer;
  const able =
    partitions.every((partition) => isByElement(optimizer, partition)) &&
    !(canExchange(optimizer) && group.size > 1);
  if (able) return share ?? findGpuShare({ ...options, setup: setupOf(options) });
  if (!share) return 0;
  throw configError(
    'zero_optimization.offload_optimizer.gpu_share',
    'an elementwise optimizer, such as AdamW',
    `${optimizer.name}, and gpu_share ${share}`,
    'Remove gpu_share: CPU threads then update all of the state.',
  );
}

/** Returns the configuration in the terms of the plan. */
const setupOf = ({ config, optimizer, device }: StateOptions): Setup =>
  setupOfConfig(config, { optimizer: factsOf(optimizer), isHost: device.kind === 'cpu' });

/** Returns the form of the master weights of bf16 partitions. */
function mastersFor(Processor: Processor, options: StateOptions): StateChoice['masters'] {
  const placement = Processor === StreamedState ? 'streamed' : 'host';
  return chooseStrategies(placement, setupOf(options)).masters;
}

/**
 * Creates the schedule of updates after the step decision: one pass, or several with exchanges
 * between ranks.
 */
function createDeferred(
  state: ShardState,
  partitions: readonly Partition[],
  { config, optimizer, group }: StateOptions,
): Schedule {
  const { stage, reduce_bucket_size: bucketElements } = config.zero_optimization;
  if (canExchange(optimizer) && group.size > 1) {
    return new ExchangedUpdates(optimizer, { state, partitions, group, bucketElements });
  }
  const units = partitions.map(({ unit }) => unit);
  const cut = findCutParameter(optimizer, units, { stage, shards: group.size });
  if (cut === null) return new DeferredUpdates(state, optimizer, partitions);
  const parts = { state, partitions, group };
  if (canGather(optimizer)) return new GatheredUpdates(optimizer, parts);
  if (canSum(optimizer)) return new SummedUpdates(optimizer, parts);
  return new DeferredUpdates(state, optimizer, partitions);
}

// Builds the ZeRO stages from the configuration. Only this file depends on stage numbers.
import type { ResolvedConfig } from '../../../types/config.js';
import type { Device } from '../../runtime/device.js';
import { gatherFp8 } from '../../zero/fp8-gather.js';
import {
  GatheredWeights,
  type GatherUnit,
  gatherPlain,
  onDevice,
  onHost,
  SecondaryShards,
  type ShardStorage,
  UnitTrace,
} from '../../zero/gathered-weights.js';
import {
  alternatingGradients,
  Buckets,
  type CommTimer,
  type GradientFlow,
  type GradientRoute,
  localGradients,
  ownedGradients,
  shardedGradients,
  summedGradients,
  sumPartialGradients,
  untimedComm,
} from '../../zero/gradients.js';
import { gatherCodes, QuantizedWire, ReplicatedWire } from '../../zero/quantized.js';
import { type WeightFlow, type ZeroStage, ZeroStages } from '../../zero/stage.js';
import type { WeightUnit } from '../../zero/unit.js';
import { PublishedWeights, WholeWeights } from '../../zero/weights.js';
import {
  AllReduceWire,
  CastWire,
  type Collectives,
  DividedWire,
  type Wire,
} from '../../zero/wire.js';
import type { ZeroGroup, ZeroGroups } from '../zero-groups.js';
import { openDiskWeights } from './disk-storage.js';
import { createFp8Test } from './fp8.js';
import { dtypeOf, gradientDType } from './precision.js';
import type { ModelUnits } from './units.js';

interface StageOptions {
  groups: ZeroGroups;
  /** Measures collectives. Default: nothing is measured. */
  timer?: CommTimer;
  /** The tensor-parallel ranks. Default: null. */
  tensorGroup?: Collectives | null;
  /**
   * Returns whether ranks sum gradients in the present step. Default: null, they do in every step.
   */
  isSummed?: (() => boolean) | null;
}

/** The ranks of a ZeroGroup, and settings of their communication. */
interface GroupSetup extends ZeroGroup, Required<Pick<StageOptions, 'timer' | 'isSummed'>> {
  device: Device;
  /** Whether collectives run in parallel with compute. */
  overlap: boolean;
  /** Whether the engine trains, so that updates follow forwards. */
  isTrained: boolean;
  /** Whether the weights of the model are sharded: see shardsWeights(). */
  isSharded: boolean;
}

/** Builds the gradient and weight flows of a model: one stage for each ZeroGroup. */
export function buildStages(
  config: ResolvedConfig,
  { trained, frozen }: ModelUnits,
  device: Device,
  { groups, timer = untimedComm, tensorGroup = null, isSummed = null }: StageOptions,
): ZeroStages {
  const { stage, overlap_comm } = config.zero_optimization;
  const overlap = overlap_comm ?? stage === 3;
  const isTrained = trained.length > 0;
  const isSharded = shardsWeights(config, groups.model.group);
  const stages = groups.all.map((group): ZeroStage => {
    const between = { ...group, device, timer, overlap, isSummed, isTrained, isSharded };
    const units = trained.filter((unit) => groups.ofUnit(unit) === group);
    const frozenUnits = frozen.filter((unit) => groups.ofUnit(unit) === group);
    const route = buildRoute(config, between);
    const flow = buildGradientFlow(config, between, route);
    return {
      units,
      frozen: frozenUnits,
      gradients: tensorGroup ? sumPartialGradients(flow, tensorGroup) : flow,
      weights: buildWeightFlow(config, between, [...units, ...frozenUnits]),
    };
  });
  return new ZeroStages(trained, stages);
}

function buildGradientFlow(
  config: ResolvedConfig,
  { dataRanks, isSummed }: GroupSetup,
  route: GradientRoute | null,
): GradientFlow {
  const { stage } = config.zero_optimization;
  if (!route) return localGradients;
  if (stage === 1) return ownedGradients(route);
  if (stage > 1) return shardedGradients(route);
  const summed = summedGradients(route);
  const ownFactor = config.gradient_allreduce_op === 'mean' ? 1 : 1 / dataRanks;
  return isSummed ? alternatingGradients(summed, isSummed, ownFactor) : summed;
}

/**
 * Returns the minimum elements per reduction. It is 0 with offload, because the host updates each
 * unit as it arrives.
 */
export function gradientBucket({ zero_optimization: zero }: ResolvedConfig): number {
  return zero.offload_optimizer.device === 'none' ? zero.reduce_bucket_size : 0;
}

/**
 * Builds the flow of weights. A single rank exchanges no shards, but may gather weights from host
 * memory or a disk.
 */
function buildWeightFlow(
  config: ResolvedConfig,
  between: GroupSetup,
  units: readonly WeightUnit[],
): WeightFlow {
  const { group, device, timer, overlap, isTrained, isSharded, secondary, spansStages } = between;
  const { zero_optimization: zero } = config;
  if (isSharded) {
    return new GatheredWeights(device, group, {
      prefetchElements: zero.stage3_prefetch_bucket_size,
      maxLive: zero.stage3_max_live_parameters,
      maxReuseDistance: zero.stage3_max_reuse_distance,
      persistenceThreshold: zero.stage3_param_persistence_threshold,
      modelPersistenceThreshold: zero.stage3_model_persistence_threshold,
      trace: new UnitTrace(!isTrained),
      storage: openShardStorage(config, between, units),
      gather: chooseGather(config, units),
      secondaryShards: secondary && new SecondaryShards(secondary),
      overlap,
      timer,
    });
  }
  if (zero.stage === 0 || group.size === 1) return new WholeWeights(group);
  const bucketElements = spansStages ? 0 : zero.allgather_bucket_size;
  return new PublishedWeights(device, group, { bucketElements, overlap, timer });
}

function chooseGather(
  { fp8, zero_optimization: zero }: ResolvedConfig,
  units: readonly WeightUnit[],
): GatherUnit {
  if (zero.zero_quantized_weights) return gatherCodes;
  if (!fp8.enabled || !fp8.all_gather) return gatherPlain;
  return gatherFp8(createFp8Test(units.map(({ module }) => module)));
}

/** Returns whether units are gathered at use and freed afterwards. This includes frozen units. */
export function shardsWeights(config: ResolvedConfig, { size }: { size: number }): boolean {
  return config.zero_optimization.stage === 3 && (size > 1 || offloadsWeights(config));
}

/**
 * Returns whether weights are in host memory or on a disk, and are copied to the device unit by
 * unit.
 */
export function offloadsWeights({ zero_optimization: zero }: ResolvedConfig): boolean {
  return zero.stage === 3 && zero.offload_param.device !== 'none';
}

/** Returns the storage of weight shards. Throws DS_IO if a disk lacks space for them. */
function openShardStorage(
  config: ResolvedConfig,
  { device, group }: GroupSetup,
  units: readonly WeightUnit[],
): ShardStorage {
  if (!offloadsWeights(config)) return onDevice;
  if (config.zero_optimization.offload_param.device === 'cpu') return onHost;
  return openDiskWeights({ config, units, device, group });
}

/**
 * Builds the reduction of gradients over ranks. Returns null if no other rank has gradients.
 * Division happens in the wider dtype: before a cast to a narrower dtype, or after a cast to f32.
 * Source: DeepSpeed's gradient averaging.
 */
function buildRoute(config: ResolvedConfig, between: GroupSetup): GradientRoute | null {
  const { group, dataRanks: ranks, replicas, device, overlap, timer } = between;
  if (group.size === 1 && ranks === 1 && !replicas) return null;
  const backwardDtype = gradientDType(config);
  const { communication_data_type: communicationDtype } = config;
  const sentDtype = communicationDtype === null ? backwardDtype : dtypeOf[communicationDtype];
  const divisor = divisorOf(config, ranks, [backwardDtype, sentDtype].includes('f16'));
  const { zero_quantized_gradients: inCodes, reduce_scatter } = config.zero_optimization;
  let wire: Wire = inCodes ? new QuantizedWire(group, group) : group;
  if (replicas) wire = new ReplicatedWire(wire, replicas);
  if (sentDtype !== backwardDtype && sentDtype !== 'f32') wire = new CastWire(wire, sentDtype);
  if (divisor !== 1) wire = new DividedWire(wire, divisor);
  if (sentDtype !== backwardDtype && sentDtype === 'f32') wire = new CastWire(wire, sentDtype);
  if (!reduce_scatter) wire = new AllReduceWire(wire, group);
  const factor = (config.gradient_allreduce_op === 'mean' ? ranks : 1) / divisor;
  const options = { bucketElements: gradientBucket(config), overlap, timer };
  return { wire, factor, buckets: new Buckets(device, options) };
}

/**
 * Returns the divisor of gradients before the sum. If gradients are f16 at any point, it is the
 * number of ranks, because the mean of finite f16 values is finite. f32 and bf16 have enough range
 * for the sum.
 */
function divisorOf(config: ResolvedConfig, ranks: number, inF16: boolean): number {
  if (ranks === 1) return 1;
  if (config.prescale_gradients) return ranks;
  const { gradient_predivide_factor: factor } = config;
  return factor === 1 && inF16 ? ranks : factor;
}

// From the configuration to the stages of ZeRO: the only place that knows their numbers.
import type { ResolvedConfig } from '../../../types/config.js';
import type { Device } from '../../runtime/device.js';
import type { Collectives } from '../../zero/collectives.js';
import { type CommTimer, Exchange, untimedComm } from '../../zero/exchange.js';
import {
  GatheredWeights,
  gatherPlain,
  onDevice,
  onHost,
  type ShardHome,
} from '../../zero/gathered-weights.js';
import {
  AlternatingGradients,
  type GradientFlow,
  LocalGradients,
  OwnedGradients,
  ShardedGradients,
  SummedGradients,
} from '../../zero/gradient-flow.js';
import { NearCopies } from '../../zero/near-copies.js';
import { PartialSums } from '../../zero/partial-sums.js';
import { gatherCodes } from '../../zero/quantized-gather.js';
import { QuantizedWire, ReplicatedWire } from '../../zero/quantized-wire.js';
import type { Unit } from '../../zero/unit.js';
import { PassTrace } from '../../zero/unit-trace.js';
import { PublishedWeights, type WeightFlow, WholeWeights } from '../../zero/weight-flow.js';
import type { WeightUnit } from '../../zero/weight-unit.js';
import {
  byAllReduce,
  byReduceScatter,
  CastWire,
  DividedWire,
  PlainWire,
  type Wire,
} from '../../zero/wire.js';
import { ZeroStage, ZeroStages } from '../../zero/zero-stage.js';
import { openDiskWeights } from './disk-weights.js';
import { dtypeOf, gradientDType } from './dtypes.js';
import { type Tie, tieOf } from './pipeline.js';
import type { ModelUnits } from './units.js';

export interface StageOptions {
  /** The ranks that share units out. */
  group: Collectives;
  /** Ranks that have other samples. Default: all of them. */
  samples?: number;
  /** Other ranks that share units out likewise: those with the same shards as this one. */
  replicas?: Collectives | null;
  /** Those of the group that are close, which share a second copy of gathered weights out. */
  near?: Collectives | null;
  /** Default: nothing is timed. */
  timer?: CommTimer;
  /** What several stages of a pipeline have. */
  ties?: readonly Tie[];
  /** The ranks that share layers out, where they do. */
  layers?: Collectives | null;
  /**
   * Whether gradients are summed over the ranks in the step under way; null (the default): in every
   * step.
   */
  isSummed?: (() => boolean) | null;
}

/** What flows between the ranks of a group. */
interface Between {
  group: Collectives;
  /** Those of them that have other samples: gradients are means over these, and else sums. */
  ranks: number;
  device: Device;
  timer: CommTimer;
  /** Collectives run beside compute. */
  overlap: boolean;
  isSummed: (() => boolean) | null;
  /** Whether steps follow forwards. */
  isTrained: boolean;
  replicas: Collectives | null;
  near: Collectives | null;
  /**
   * Updated weights go to the others in the order of updates, wherever each is updated: ranks with
   * other layers beside these may have their state in other places.
   */
  publishesAtOnce: boolean;
}

/**
 * How the gradients and weights of a model's units flow between the ranks of a group: of one, they
 * stay where they are.
 */
export function buildStages(
  config: ResolvedConfig,
  { trained, frozen }: ModelUnits,
  device: Device,
  options: StageOptions,
): ZeroStages {
  const { group, timer = untimedComm, ties = [], layers = null, isSummed = null } = options;
  const { stage, overlap_comm } = config.zero_optimization;
  const overlap = overlap_comm ?? stage === 3;
  const { replicas = null, near = null } = options;
  const ranks = options.samples ?? group.size;
  const isTrained = trained.length > 0;
  const common = { group, ranks, device, timer, overlap, isSummed };
  const between = { ...common, isTrained, replicas, near, publishesAtOnce: false };
  const stageOf = (units: readonly Unit[], own: Between, still: readonly WeightUnit[]): ZeroStage =>
    new ZeroStage(
      units,
      summed(gradientFlow(config, own), layers),
      weightFlow(config, own, [...units, ...still]),
      still,
    );
  const rest = trained.filter((unit) => !tieOf(ties, unit));
  const tied = ties.map((tie) =>
    stageOf(
      trained.filter((unit) => tieOf(ties, unit) === tie),
      { ...between, group: tie.group, publishesAtOnce: true },
      [],
    ),
  );
  return new ZeroStages(trained, [stageOf(rest, between, frozen), ...tied]);
}

/** Ranks that share layers out may have parts of gradients. */
function summed(flow: GradientFlow, layers: Collectives | null): GradientFlow {
  return layers ? new PartialSums(flow, layers, flow instanceof ShardedGradients) : flow;
}

function gradientFlow(config: ResolvedConfig, between: Between): GradientFlow {
  const { group, ranks, device, timer, overlap, isSummed, replicas } = between;
  const { zero_optimization: zero } = config;
  if (group.size === 1 && !replicas) return new LocalGradients();
  const parts = {
    group,
    wire: buildWire(config, between),
    toOwner: zero.reduce_scatter ? byReduceScatter : byAllReduce,
    exchange: new Exchange(device, { bucketElements: gradientBucket(config), overlap, timer }),
  };
  if (zero.stage === 0) {
    const summed = new SummedGradients(parts);
    const ownFactor = config.gradient_allreduce_op === 'mean' ? 1 : 1 / ranks;
    return isSummed ? new AlternatingGradients(summed, { isSummed, ownFactor }) : summed;
  }
  return zero.stage === 1 ? new OwnedGradients(parts) : new ShardedGradients(parts);
}

/**
 * Elements of gradients that are reduced together. The host updates a unit when its gradient has
 * come: where state is offloaded, none waits for others.
 */
export function gradientBucket({ zero_optimization: zero }: ResolvedConfig): number {
  return zero.offload_optimizer.device === 'none' ? zero.reduce_bucket_size : 0;
}

/** One rank has nothing to share out, but may gather from host memory. */
function weightFlow(
  config: ResolvedConfig,
  between: Between,
  units: readonly WeightUnit[],
): WeightFlow {
  const { group, device, timer, overlap, isTrained, near, publishesAtOnce } = between;
  const { zero_optimization: zero } = config;
  if (shardsWeights(config, group)) {
    return new GatheredWeights(device, group, {
      prefetch: zero.stage3_prefetch_bucket_size,
      maxLive: zero.stage3_max_live_parameters,
      maxReuseDistance: zero.stage3_max_reuse_distance,
      persistenceThreshold: zero.stage3_param_persistence_threshold,
      modelPersistenceThreshold: zero.stage3_model_persistence_threshold,
      ...(isTrained ? {} : { trace: new PassTrace() }),
      home: shardHome(config, between, units),
      gather: zero.zero_quantized_weights ? gatherCodes : gatherPlain,
      near: near && new NearCopies(near),
      overlap,
      timer,
    });
  }
  if (zero.stage === 0 || group.size === 1) return new WholeWeights(group);
  const bucketElements = publishesAtOnce ? 0 : zero.allgather_bucket_size;
  return new PublishedWeights(device, group, { bucketElements, overlap, timer });
}

/** Whether a unit's weights, frozen ones included, come when it is used and go again. */
export function shardsWeights(config: ResolvedConfig, { size }: { size: number }): boolean {
  return config.zero_optimization.stage === 3 && (size > 1 || offloadsWeights(config));
}

/** Whether weights live in host memory, or on a disk, and come to the device unit by unit. */
export function offloadsWeights({ zero_optimization: zero }: ResolvedConfig): boolean {
  return zero.stage === 3 && zero.offload_param.device !== 'none';
}

/** Throws DS_IO where a disk has no room for the weights that are to be on it. */
function shardHome(
  config: ResolvedConfig,
  { device, group }: Between,
  units: readonly WeightUnit[],
): ShardHome {
  if (!offloadsWeights(config)) return onDevice;
  if (config.zero_optimization.offload_param.device === 'cpu') return onHost;
  return openDiskWeights({ config, units, device, group });
}

/**
 * Divides where the most bits are: before gradients become narrower, or after they have become f32.
 * Source: DeepSpeed's gradient averaging.
 */
function buildWire(config: ResolvedConfig, { group, ranks, replicas }: Between): Wire {
  const written = gradientDType(config);
  const { communication_data_type: asked } = config;
  const sent = asked === null ? written : dtypeOf[asked];
  const divisor = divisorOf(config, ranks, [written, sent].includes('f16'));
  const divided = (wire: Wire): Wire => (divisor === 1 ? wire : new DividedWire(wire, divisor));
  const whole = new PlainWire(group, config.gradient_allreduce_op === 'mean' ? ranks : 1);
  const { zero_quantized_gradients: inCodes } = config.zero_optimization;
  const summed = inCodes ? new QuantizedWire(whole, group) : whole;
  const plain = replicas ? new ReplicatedWire(summed, replicas) : summed;
  if (sent === written) return divided(plain);
  if (sent === 'f32') return new CastWire(divided(plain), sent);
  return divided(new CastWire(plain, sent));
}

/**
 * What gradients are divided by before they are summed. Where sums are f16, or become it, by the
 * number of ranks: the sum is then their mean, which is finite wherever theirs are. The range of
 * f32 and bf16 needs no such care.
 */
function divisorOf(config: ResolvedConfig, ranks: number, inF16: boolean): number {
  if (ranks === 1) return 1;
  if (config.prescale_gradients) return ranks;
  const { gradient_predivide_factor: factor } = config;
  return factor === 1 && inF16 ? ranks : factor;
}

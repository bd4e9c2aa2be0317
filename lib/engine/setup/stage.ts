// From the configuration to the ZeRO stage: the only place that knows their numbers.
import type { ResolvedConfig } from '../../../types/config.js';
import type { Device } from '../../runtime/device.js';
import type { Collectives } from '../../zero/collectives.js';
import { type CommTimer, untimedComm } from '../../zero/comm-timer.js';
import { Exchange } from '../../zero/exchange.js';
import { GatheredWeights } from '../../zero/gathered-weights.js';
import type { GradientParts } from '../../zero/group-stage.js';
import { onDevice, onHost } from '../../zero/shard-home.js';
import { SingleRank } from '../../zero/single-rank.js';
import type { Stage } from '../../zero/stage.js';
import { Stage0 } from '../../zero/stage0.js';
import { Stage1 } from '../../zero/stage1.js';
import { Stage2 } from '../../zero/stage2.js';
import { Stage3 } from '../../zero/stage3.js';
import { byAllReduce, byReduceScatter } from '../../zero/to-owner.js';
import type { Unit } from '../../zero/unit.js';
import { WeightsExchange } from '../../zero/weights-exchange.js';
import { CastWire, DividedWire, PlainWire, type Wire } from '../../zero/wire.js';
import { dtypeOf, gradientDType } from './dtypes.js';

export interface StageOptions {
  /** The ranks that share units out. */
  group: Collectives;
  /** Default: nothing is timed. */
  timer?: CommTimer;
}

/** The stage of `units` over the ranks of a group; one rank moves nothing, unless its weights are offloaded. */
export function buildStage(
  config: ResolvedConfig,
  units: readonly Unit[],
  device: Device,
  { group, timer = untimedComm }: StageOptions,
): Stage {
  const { zero_optimization: zero } = config;
  if (group.size === 1 && !offloadsWeights(config)) return new SingleRank(units);
  const overlap = zero.overlap_comm ?? zero.stage === 3;
  const gradients: GradientParts = {
    group,
    wire: buildWire(config, group),
    toOwner: zero.reduce_scatter ? byReduceScatter : byAllReduce,
    gradients: new Exchange(device, { bucketElements: zero.reduce_bucket_size, overlap, timer }),
  };
  if (zero.stage === 0) return new Stage0(units, gradients);
  if (zero.stage === 3) {
    const weights = new GatheredWeights(device, group, {
      prefetch: zero.stage3_prefetch_bucket_size,
      maxLive: zero.stage3_max_live_parameters,
      maxReuseDistance: zero.stage3_max_reuse_distance,
      persistenceThreshold: zero.stage3_param_persistence_threshold,
      modelPersistenceThreshold: zero.stage3_model_persistence_threshold,
      home: offloadsWeights(config) ? onHost : onDevice,
      overlap,
      timer,
    });
    return new Stage3(units, { ...gradients, weights });
  }
  const weights = new WeightsExchange(device, group, {
    bucketElements: zero.allgather_bucket_size,
    overlap,
    timer,
  });
  const parts = { ...gradients, weights };
  return zero.stage === 1 ? new Stage1(units, parts) : new Stage2(units, parts);
}

/** Whether weights live in host memory and come to the device unit by unit. */
export function offloadsWeights({ zero_optimization: zero }: ResolvedConfig): boolean {
  return zero.stage === 3 && zero.offload_param.device === 'cpu';
}

/**
 * Divides where the most bits are: before gradients become narrower, or after they have become f32. Source: DeepSpeed's
 * gradient averaging.
 */
function buildWire(config: ResolvedConfig, group: Collectives): Wire {
  const written = gradientDType(config);
  const { communication_data_type: asked } = config;
  const sent = asked === null ? written : dtypeOf[asked];
  const divisor = divisorOf(config, group.size, [written, sent].includes('f16'));
  const divided = (wire: Wire): Wire => (divisor === 1 ? wire : new DividedWire(wire, divisor));
  const plain = new PlainWire(group, config.gradient_allreduce_op === 'mean');
  if (sent === written) return divided(plain);
  if (sent === 'f32') return new CastWire(divided(plain), sent);
  return divided(new CastWire(plain, sent));
}

/**
 * What gradients are divided by before they are summed. Where sums are f16, or become it, by the number of ranks: the sum
 * is then their mean, which is finite wherever theirs are. The range of f32 and bf16 needs no such care.
 */
function divisorOf(config: ResolvedConfig, ranks: number, inF16: boolean): number {
  if (config.prescale_gradients) return ranks;
  const { gradient_predivide_factor: factor } = config;
  return factor === 1 && inF16 ? ranks : factor;
}

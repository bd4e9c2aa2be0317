// Converts a ds_config.json to a Setup of the plan.
import type { ResolvedConfig } from '../../types/config.js';
import { keysPerQuery } from '../tensor/ops/attention-filter.js';
import { fewestKeptKeys } from '../tensor/recompute/index.js';
import { tileSize } from '../zero/state/tiles.js';
import type { OptimizerFacts } from './optimizer-facts.js';
import type { Rates } from './rates.js';
import { plainSetup, type Setup, type WeightsOnDisk } from './setup.js';
import { type Cluster, predictGpuShare } from './step-time.js';

/** Numbers of ranks along each axis of parallelism. */
export interface JobMesh {
  /** Data-parallel ranks, and sequence-parallel ranks within each of them. */
  data: number;
  tokens: number;
  /** Tensor-parallel ranks of each layer; 1 if the counted model is already one rank's part. */
  layers: number;
  stages: number;
}

/** Facts outside the configuration. */
export interface JobFacts {
  optimizer: OptimizerFacts;
  /** Whether the device is the CPU. Default: false. */
  isHost?: boolean;
  /** Ranks of the job. Default: one rank. */
  mesh?: JobMesh;
  /** Tokens of a sample. Default: 1. */
  seq?: number;
  /** Whether blocks have activation checkpointing. Default: false. */
  checkpointing?: boolean;
  /** Hardware for predicting a gpu_share of null, which a run would measure. Default: share 0. */
  hardware?: { rates: Rates; cluster: Cluster };
}

const ONE_RANK: JobMesh = { data: 1, tokens: 1, layers: 1, stages: 1 };

/** Returns the setup of a plan for a resolved configuration. */
export function setupOfConfig(config: ResolvedConfig, facts: JobFacts): Setup {
  const { bf16, data_types, zero_optimization: zero } = config;
  const { stage, offload_optimizer: state, offload_param, overlap_comm } = zero;
  const { optimizer, mesh = ONE_RANK, seq = 1, checkpointing = false, hardware } = facts;
  const precision = readPrecision(config);
  const all = mesh.data * mesh.tokens;
  const ranks = stage === 3 && zero.mics_shard_size > 0 ? zero.mics_shard_size : all;
  const setup: Setup = {
    ...plainSetup,
    stage,
    ranks,
    copies: all / ranks,
    tensor: mesh.layers,
    stages: mesh.stages,
    optimizer: state.device === 'none' ? 'device' : state.device,
    weights: stage === 3 && offload_param.device !== 'none' ? 'cpu' : 'device',
    weightsOnDisk: readWeightsOnDisk(config),
    ratio: state.ratio,
    gpuShare: state.gpu_share ?? 0,
    speculates: speculates(config, facts),
    slots: state.buffer_count,
    subGroup: zero.sub_group_size,
    microBatch: config.train_micro_batch_size_per_gpu,
    seq: Math.max(1, Math.ceil(seq / mesh.tokens)),
    accumulation: config.gradient_accumulation_steps,
    precision,
    wideGradients: (data_types.grad_accum_dtype ?? precision) === 'fp32',
    overlap: overlap_comm ?? stage === 3,
    checkpointing,
    segments: config.activation_checkpointing.number_checkpoints,
    hostCheckpoints: config.activation_checkpointing.cpu_checkpointing,
    keepsAttention: keepsAttention(config, seq),
    reduceBucket: zero.reduce_bucket_size,
    prefetch: zero.stage3_prefetch_bucket_size,
    maxLive: zero.stage3_max_live_parameters,
    maxReuse: zero.stage3_max_reuse_distance,
    persistence: zero.stage3_param_persistence_threshold,
    modelPersistence: zero.stage3_model_persistence_threshold,
    nearRanks: zero.zero_hpz_partition_size,
    // Codes of FP8 need 1.0 bytes a weight instead of 1.06.
    quantizedWeights: zero.zero_quantized_weights || (config.fp8.enabled && config.fp8.all_gather),
    quantizedGradients: zero.zero_quantized_gradients,
    stateBytes: optimizer.stateBytes,
    canSplit: optimizer.canSplit,
    bf16States: bf16.bf16_optimizer_states,
  };
  const isMeasured = state.gpu_share === null && state.device === 'cpu' && !facts.isHost;
  return isMeasured && hardware
    ? { ...setup, gpuShare: predictGpuShare(setup, hardware.rates, hardware.cluster) }
    : setup;
}

/**
 * Returns whether checkpointed segments keep causal attention over `seq` tokens; ignores windows.
 */
function keepsAttention({ activation_checkpointing: section }: ResolvedConfig, seq: number) {
  const { keep_attention: keepAttention, cpu_checkpointing: cpuCheckpointing } = section;
  const keys = keysPerQuery({ T: seq, S: seq }, { window: 0, causal: true });
  return keys >= fewestKeptKeys({ keepAttention, cpuCheckpointing });
}

/** Returns the dtype of weights, activations and gradients. */
function readPrecision({ fp16, bf16 }: ResolvedConfig): Setup['precision'] {
  if (fp16.enabled) return 'fp16';
  return bf16.enabled ? 'bf16' : 'fp32';
}

/**
 * Returns whether updates of state in host memory are speculative, during backward. On a CPU device
 * there is nothing to overlap. Speculation uses its buffers for gradients and weights in turn, so
 * gradients of another dtype prevent it (config rule speculationHasOneDtype), and weights on a disk
 * too.
 */
function speculates(config: ResolvedConfig, { optimizer, isHost }: JobFacts): boolean {
  const { super_offload: superOffload } = config.zero_optimization.offload_optimizer;
  const precision = readPrecision(config);
  const hasOneDType = (config.data_types.grad_accum_dtype ?? precision) === precision;
  const able = optimizer.canSpeculate && hasOneDType && !isHost;
  return (superOffload ?? able) && !readWeightsOnDisk(config);
}

/** Returns the settings of weights on a disk; null if no weights are there. */
function readWeightsOnDisk({ zero_optimization: zero }: ResolvedConfig): WeightsOnDisk | null {
  const { device, max_in_cpu: inMemory, buffer_count: slots, buffer_size } = zero.offload_param;
  if (zero.stage !== 3 || device !== 'nvme') return null;
  return { inMemory, slots, slotSize: tileSize(buffer_size) };
}

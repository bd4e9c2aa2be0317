// Declares the training setup of a plan: the values of ds_config.json that affect memory and time.

/** Location of optimizer state or weights. */
export type MemoryLocation = 'device' | 'cpu' | 'nvme';

/** Dtypes of weights, gradients and activations, by their names in configurations. */
export const PRECISIONS = ['bf16', 'fp16', 'fp32'] as const;

/** A training setup. */
export interface Setup {
  /** zero_optimization.stage. */
  stage: 0 | 1 | 2 | 3;
  /** Size of the ZeRO shard group: all ranks divided by `copies`, `tensor` and `stages`. */
  ranks: number;
  /** Number of replica groups of the state (with mics_shard_size); else 1. */
  copies: number;
  /** Tensor-parallel ranks. */
  tensor: number;
  /** Pipeline stages, one per rank. */
  stages: number;
  /** Location of master weights and optimizer state. */
  optimizer: MemoryLocation;
  /** Location of unused weights; "cpu" only with stage 3. */
  weights: Exclude<MemoryLocation, 'nvme'>;
  /** offload_optimizer.ratio: the fraction of the state at `optimizer`. */
  ratio: number;
  /** offload_optimizer.gpu_share: the fraction of offloaded state that the device updates. */
  gpuShare: number;
  /** offload_optimizer.super_offload: speculative updates during backward. */
  speculates: boolean;
  /** offload_optimizer.buffer_count: tiles of disk state in host memory at a time. */
  slots: number;
  /** sub_group_size: largest number of elements in a sub-group. */
  subGroup: number;
  /** Samples in a micro-batch of one rank. */
  microBatch: number;
  /** Tokens of a sample. */
  seq: number;
  /** Micro-batches of a step. */
  accumulation: number;
  /** Dtype of weights, gradients and activations. */
  precision: (typeof PRECISIONS)[number];
  /** f32 gradients in any precision (data_types.grad_accum_dtype). */
  wideGradients: boolean;
  /** Activation checkpointing of blocks. */
  checkpointing: boolean;
  /** activation_checkpointing.number_checkpoints: segments of blocks; null: a segment a block. */
  segments: number | null;
  /** activation_checkpointing.cpu_checkpointing: inputs of segments are kept in host memory. */
  hostCheckpoints: boolean;
  /** activation_checkpointing.keep_attention: segments keep the results of attention too. */
  keepsAttention: boolean;
  /** For `weights` "cpu": offload_param.device is "nvme". Null without a disk. */
  weightsOnDisk: WeightsOnDisk | null;
  /** zero_optimization.overlap_comm. */
  overlap: boolean;
  /** reduce_bucket_size, in elements. */
  reduceBucket: number;
  /** stage3_prefetch_bucket_size, in elements. */
  prefetch: number;
  /** stage3_max_live_parameters. */
  maxLive: number;
  /** stage3_max_reuse_distance, in elements. */
  maxReuse: number;
  /** stage3_param_persistence_threshold and stage3_model_persistence_threshold, in elements. */
  persistence: number;
  modelPersistence: number;
  /**
   * zero_quantized_weights (or fp8.all_gather) and zero_quantized_gradients: messages in 8 and 4
   * bits.
   */
  quantizedWeights: boolean;
  quantizedGradients: boolean;
  /** zero_hpz_partition_size: ranks that share a secondary copy of the weights; 1 for no copy. */
  nearRanks: number;
  /** Bytes of optimizer state per parameter without the master weight: 8 for AdamW. */
  stateBytes: number;
  /** Whether the optimizer can update masters in two halves, as AdamW does. */
  canSplit: boolean;
  /** bf16.bf16_optimizer_states: AdamW's moments are bf16. */
  bf16States: boolean;
}

/** Weights on a disk: the keys of offload_param, in elements. */
export interface WeightsOnDisk {
  /** max_in_cpu: weights of a rank that stay in host memory. */
  inMemory: number;
  /** buffer_count and buffer_size: slots in host memory for weights from the disk. */
  slots: number;
  slotSize: number;
}

/** AdamW in bf16 on one rank, without sharding and offload. */
export const plainSetup: Setup = {
  stage: 0,
  ranks: 1,
  optimizer: 'device',
  weights: 'device',
  ratio: 1,
  copies: 1,
  tensor: 1,
  stages: 1,
  gpuShare: 0,
  speculates: true,
  slots: 4,
  subGroup: 1e9,
  microBatch: 1,
  seq: 1024,
  accumulation: 1,
  precision: 'bf16',
  checkpointing: false,
  wideGradients: false,
  overlap: true,
  stateBytes: 8,
  bf16States: false,
  canSplit: true,
  segments: null,
  hostCheckpoints: false,
  keepsAttention: false,
  weightsOnDisk: null,
  reduceBucket: 5e8,
  prefetch: 5e7,
  maxLive: 1e9,
  maxReuse: 1e9,
  persistence: 1e5,
  modelPersistence: Number.MAX_SAFE_INTEGER,
  nearRanks: 1,
  quantizedWeights: false,
  quantizedGradients: false,
};

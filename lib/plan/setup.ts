// A way to train a model that a plan weighs: what ds_config.json would say of it.

/** Where the optimizer's state is, or the weights. */
export type Place = 'device' | 'cpu' | 'nvme';

/** One way to train. */
export interface Setup {
  /** zero_optimization.stage. */
  stage: 0 | 1 | 2 | 3;
  /** Ranks that share the state out: all, over `copies`, `tensor` and `stages`. */
  ranks: number;
  /** Groups of so many ranks, each with a state of its own: mics_shard_size; else 1. */
  copies: number;
  /** Ranks that share each layer out. */
  tensor: number;
  /** Stages of a pipeline, one to a rank. */
  stages: number;
  /** Where master weights and the optimizer's state are. */
  optimizer: Place;
  /** Where the weights are when nobody uses them; "cpu" at stage 3 alone. */
  weights: Exclude<Place, 'nvme'>;
  /** offload_optimizer.ratio: the share of the state that `optimizer` means. */
  ratio: number;
  /** offload_optimizer.gpu_share: of that, the share which the device updates. */
  gpuShare: number;
  /** offload_optimizer.super_offload: whether updates are tried out during the backward. */
  speculates: boolean;
  /** offload_optimizer.buffer_count: tiles of state from a disk that are in host memory at once. */
  slots: number;
  /** sub_group_size: the most elements of one. */
  subGroup: number;
  /** Samples of a rank's micro-batch. */
  microBatch: number;
  /** Tokens of a sample. */
  seq: number;
  /** Micro-batches of a step. */
  accumulation: number;
  /** Of weights, gradients and activations. */
  precision: 'bf16' | 'fp16' | 'fp32';
  /** Whether gradients are f32 whatever the precision: data_types.grad_accum_dtype. */
  wideGradients: boolean;
  /** Whether blocks are computed again in the backward. */
  checkpointing: boolean;
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
  /** zero_hpz_partition_size: ranks that share a second copy of the weights; 1 for none. */
  nearRanks: number;
  /** Bytes of the optimizer's state for each parameter, the master weight apart: 8 for AdamW. */
  stateBytes: number;
  /** bf16.bf16_optimizer_states: the state is AdamW's moments in bf16. */
  bf16States: boolean;
}

/** AdamW in bf16 on one rank, with nothing shared out or moved. */
export const plainSetup: Setup = {
  ...{ stage: 0, ranks: 1, optimizer: 'device', weights: 'device', ratio: 1 },
  ...{ copies: 1, tensor: 1, stages: 1 },
  gpuShare: 0,
  speculates: true,
  ...{ slots: 4, subGroup: 1e9 },
  ...{ microBatch: 1, seq: 1024, accumulation: 1, precision: 'bf16', checkpointing: false },
  ...{ wideGradients: false, overlap: true, stateBytes: 8, bf16States: false },
  ...{ reduceBucket: 5e8, prefetch: 5e7, maxLive: 1e9, maxReuse: 1e9 },
  ...{ persistence: 1e5, modelPersistence: Number.MAX_SAFE_INTEGER, nearRanks: 1 },
};

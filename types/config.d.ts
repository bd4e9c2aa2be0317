// ds_config.json: what users write (DsConfig) and what the engine reads (ResolvedConfig), in one
// spelling.
import type { SchedulerConfig } from './schedulers.js';

/** The user's form: every key is optional. lib/config/schema.json holds ranges and defaults. */
export interface DsConfig {
  /** Where editors find the schema; ignored. */
  $schema?: string;
  /** Samples per optimizer step over all ranks: micro-batch x accumulation steps x world size. */
  train_batch_size?: number;
  /** Samples of one forward and backward on one device. */
  train_micro_batch_size_per_gpu?: number;
  /** Backwards per optimizer step; default 1 where it does not follow from the other two. */
  gradient_accumulation_steps?: number;
  /** Missing or null: the caller of initialize() gives the optimizer. */
  optimizer?: OptimizerConfig | null;
  /** Missing or null: the optimizer's rate stays constant. */
  scheduler?: SchedulerConfig | null;
  fp16?: Fp16Config;
  bf16?: Bf16Config;
  zero_optimization?: ZeroConfig;
  /** Global L2 norm that gradients are scaled down to; 0 switches clipping off. Default 1. */
  gradient_clipping?: number;
  /** Divides gradients by the world size before, not after, they are summed. Default false. */
  prescale_gradients?: boolean;
  /** Factor applied before the sum over ranks and undone after it; no effect on one process. */
  gradient_predivide_factor?: number;
  /** Dtype of reductions over ranks; no effect on one process. */
  communication_data_type?: 'fp16' | 'bf16' | 'fp32' | null;
  /** Global steps between two progress lines; null prints none. Default null. */
  managed_gradient_accumulation?: boolean;
  steps_per_print?: number | null;
  /** Seed of the library's generator; null leaves the generator as it is. Default null. */
  seed?: number | null;
  /**
   * Times forward, backward and step on the device: a line every steps_per_print steps (every step
   * without it), and events for the monitors. Default false.
   */
  wall_clock_breakdown?: boolean;
  /** Event files that TensorBoard reads. */
  tensorboard?: EventFolderConfig;
  /** One CSV file per metric. */
  csv_monitor?: EventFolderConfig;
  /** Accepted; no effect yet: activation checkpointing is an option of the model. */
  activation_checkpointing?: { [key: string]: unknown };
}

/** A monitor and its folder, `<output_path>/<job_name>`. */
export interface EventFolderConfig {
  /** Default false. */
  enabled?: boolean;
  /** Folder of all jobs, relative to the working directory. Default "". */
  output_path?: string;
  /** Default "DeepSpeedJobName". */
  job_name?: string;
}

export interface OptimizerConfig {
  /** Any case. "Adam" is AdamW unless params.adam_w_mode is false, as in DeepSpeed. */
  type: 'Adam' | 'AdamW';
  params?: AdamParams;
}

export interface AdamParams {
  /** Learning rate. Default 1e-3. */
  lr?: number;
  /** Decay of the first and the second moment. Default [0.9, 0.999]. */
  betas?: [number, number];
  /** Added to the root of the second moment. Default 1e-8. */
  eps?: number;
  /** Default 0. */
  weight_decay?: number;
  /** Divides the moments by 1 - beta^t. Default true. */
  bias_correction?: boolean;
  /**
   * Decoupled weight decay; false adds weight_decay * p to the gradient ("Adam" only). Default
   * true.
   */
  adam_w_mode?: boolean;
}

export interface Fp16Config {
  /** Weights and activations in fp16, with loss scaling. Default false. */
  enabled?: boolean;
  /** A fixed loss scale; 0 means dynamic. Default 0. */
  loss_scale?: number;
  /** The first dynamic scale is 2 to this power. Default 16. */
  initial_scale_power?: number;
  /** Good steps between two doublings of the scale. Default 1000. */
  loss_scale_window?: number;
  /** Overflows before the scale is halved; 0 or less never halves. Default 2. */
  hysteresis?: number;
  /** Refills the hysteresis after every good step. Default false. */
  consecutive_hysteresis?: boolean;
  /** The scale is never halved below this; an overflow there is an error. Default 1. */
  min_loss_scale?: number;
}

export interface Bf16Config {
  /** Weights and activations in bf16. Default false. */
  enabled?: boolean;
  /** Skips updates whose gradients hold infinity or NaN. Default true. */
  check_grad_overflow?: boolean;
}

export interface ZeroConfig extends ZeroTuning {
  /**
   * 0 replicates everything; 1 shards optimizer state, 2 also gradients, 3 also weights. Default 0.
   */
  stage?: 0 | 1 | 2 | 3;
  offload_optimizer?: OffloadOptimizerConfig | null;
  /** Acts at stage 3 only, where it is not supported yet. */
  offload_param?: { device?: 'none' | 'cpu' | 'nvme'; [key: string]: unknown } | null;
}

export interface OffloadOptimizerConfig {
  /** Where master weights and moments live, and where the update runs. Default "none". */
  device?: 'none' | 'cpu';
  /** Keeps them in page-locked memory; always so here. Default true. */
  pin_memory?: boolean;
  /**
   * Computes new weights on the host while backward runs, before it is known what is clipped, and again where
   * needed: the same bits, at 2 more bytes of host memory per 16-bit weight. Default null: on a GPU, with an
   * optimizer that can.
   */
  super_offload?: boolean | null;
}

/** Tuning of communication and of sharded weights: accepted, without effect on one process. */
export interface ZeroTuning {
  contiguous_gradients?: boolean;
  overlap_comm?: boolean | null;
  reduce_scatter?: boolean;
  /** Elements. */
  reduce_bucket_size?: number;
  use_multi_rank_bucket_allreduce?: boolean;
  allgather_partitions?: boolean;
  /** Elements. */
  allgather_bucket_size?: number;
  round_robin_gradients?: boolean;
  /** Elements. */
  sub_group_size?: number;
  /** Elements. */
  prefetch_bucket_size?: number;
  /** Elements. */
  stage3_prefetch_bucket_size?: number;
  /** Elements. */
  param_persistence_threshold?: number;
  /** Elements. */
  stage3_param_persistence_threshold?: number;
  /** Elements. */
  model_persistence_threshold?: number;
  /** Elements. */
  stage3_model_persistence_threshold?: number;
  /** Elements. */
  max_live_parameters?: number;
  /** Elements. */
  stage3_max_live_parameters?: number;
  /** Elements. */
  max_reuse_distance?: number;
  /** Elements. */
  stage3_max_reuse_distance?: number;
  gather_16bit_weights_on_model_save?: boolean;
  stage3_gather_16bit_weights_on_model_save?: boolean;
  ignore_unused_parameters?: boolean;
}

/** Every property present and read-only, at any depth. */
type Filled<T> = T extends readonly unknown[]
  ? Readonly<T>
  : T extends object
    ? { readonly [K in keyof T]-?: Filled<Exclude<T[K], undefined>> }
    : T;

export type ResolvedOptimizer = Filled<OptimizerConfig>;
export type ResolvedScheduler = Filled<SchedulerConfig>;

/**
 * What the engine reads: defaults filled in, the batch triad complete, everything checked and
 * frozen.
 */
export interface ResolvedConfig {
  readonly train_batch_size: number;
  readonly train_micro_batch_size_per_gpu: number;
  readonly gradient_accumulation_steps: number;
  readonly managed_gradient_accumulation: boolean;
  readonly optimizer: ResolvedOptimizer | null;
  readonly scheduler: ResolvedScheduler | null;
  readonly fp16: Filled<Fp16Config>;
  readonly bf16: Filled<Bf16Config>;
  readonly zero_optimization: {
    readonly stage: 0 | 1 | 2 | 3;
    readonly offload_optimizer: Filled<OffloadOptimizerConfig>;
  };
  readonly gradient_clipping: number;
  readonly prescale_gradients: boolean;
  readonly steps_per_print: number | null;
  readonly wall_clock_breakdown: boolean;
  readonly tensorboard: Filled<EventFolderConfig>;
  readonly csv_monitor: Filled<EventFolderConfig>;
  readonly seed: number | null;
  /** One line for each key that was accepted without having an effect. */
  readonly notices: readonly string[];
}

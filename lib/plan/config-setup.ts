// Converts a ds_config.json to a Setup of the plan.
import type { ResolvedConfig } from '../../types/config.js';
import { tileSize } from '../zero/state/tiles.js';
import { plainSetup, type Setup, type WeightsOnDisk } from './setup.js';

/** Facts outside the configuration: ranks, model, optimizer. */
export type ConfigFacts = Pick<
  Setup,
  'ranks' | 'copies' | 'tensor' | 'stages' | 'seq' | 'checkpointing' | 'stateBytes' | 'speculates'
>;

/** Returns the setup of a configuration. gpuShare is 0 if it will be measured at start. */
export function setupOfConfig(config: ResolvedConfig, facts: ConfigFacts): Setup {
  const { bf16, fp16, data_types, zero_optimization: zero } = config;
  const { stage, offload_optimizer: state, offload_param, overlap_comm } = zero;
  const precision = fp16.enabled ? 'fp16' : bf16.enabled ? 'bf16' : 'fp32';
  return {
    ...plainSetup,
    ...facts,
    stage,
    optimizer: state.device === 'none' ? 'device' : state.device,
    weights: stage === 3 && offload_param.device !== 'none' ? 'cpu' : 'device',
    ratio: state.ratio,
    gpuShare: state.gpu_share ?? 0,
    slots: state.buffer_count,
    subGroup: zero.sub_group_size,
    microBatch: config.train_micro_batch_size_per_gpu,
    accumulation: config.gradient_accumulation_steps,
    precision,
    wideGradients: (data_types.grad_accum_dtype ?? precision) === 'fp32',
    overlap: overlap_comm ?? stage === 3,
    segments: config.activation_checkpointing.number_checkpoints,
    hostCheckpoints: config.activation_checkpointing.cpu_checkpointing,
    reduceBucket: zero.reduce_bucket_size,
    prefetch: zero.stage3_prefetch_bucket_size,
    maxLive: zero.stage3_max_live_parameters,
    maxReuse: zero.stage3_max_reuse_distance,
    persistence: zero.stage3_param_persistence_threshold,
    modelPersistence: zero.stage3_model_persistence_threshold,
    nearRanks: zero.zero_hpz_partition_size,
    quantizedWeights: zero.zero_quantized_weights,
    quantizedGradients: zero.zero_quantized_gradients,
    bf16States: bf16.bf16_optimizer_states,
  };
}

/** The weights that a configuration keeps on a disk; null without any. */
export function weightsOnDiskOf({ zero_optimization: zero }: ResolvedConfig): WeightsOnDisk | null {
  const { device, max_in_cpu: inMemory, buffer_count: slots, buffer_size } = zero.offload_param;
  if (zero.stage !== 3 || device !== 'nvme') return null;
  return { inMemory, slots, slotSize: tileSize(buffer_size) };
}

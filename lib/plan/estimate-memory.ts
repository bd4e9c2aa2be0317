// Predicts the memory of a model for each ZeRO stage and offload (zero.estimateMemory()).
import { DsError } from '../errors.js';
import { CausalLM } from '../models/index.js';
import { formatValue } from '../runtime/format-value.js';
import { namesOf, readOptions } from '../runtime/options.js';
import { requireFinite, requireInteger } from '../runtime/require-number.js';
import { requireOneOf } from '../runtime/require-type.js';
import { type DeviceBytes, type HostBytes, predictMemory, totalBytes } from './memory.js';
import { requireLength, sizesOf } from './model-sizes.js';
import { adamWFacts } from './optimizer-facts.js';
import { PRECISIONS, plainSetup, type Setup } from './setup.js';

/** Training options; see the keys of ds_config.json. */
export interface EstimateMemoryOptions {
  /** Data-parallel ranks. Default: 1. */
  ranks?: number;
  /** Samples in a micro-batch of one rank. Default: 1. */
  microBatch?: number;
  /** Tokens of a sample. Default: 1024, or the model's longest sequence if that is shorter. */
  seq?: number;
  /** Micro-batches of a step. Default: 1. */
  accumulation?: number;
  /** Dtype of weights, gradients and activations. Default: "bf16". */
  precision?: Setup['precision'];
  /** Activation checkpointing of blocks. Default: the option of the model. */
  activationCheckpointing?: boolean;
  /**
   * Bytes of optimizer state per parameter without the master weight. Default: 8 (AdamW), or 4 with
   * `bf16OptimizerStates`.
   */
  stateBytes?: number;
  /** bf16.bf16_optimizer_states. Default: false. */
  bf16OptimizerStates?: boolean;
  /** offload_optimizer.super_offload. Default: true; false needs less host memory. */
  superOffload?: boolean;
}

/** Bytes of one rank for one stage and offload. */
export interface MemoryEstimate {
  /** zero_optimization.stage. */
  stage: 0 | 1 | 2 | 3;
  /** offload_optimizer.device. */
  offloadOptimizer: 'none' | 'cpu';
  /** offload_param.device. */
  offloadParam: 'none' | 'cpu';
  /** Device memory by part, at the peak of a step. */
  device: DeviceBytes & { total: number };
  /** Host memory by part. */
  host: HostBytes & { total: number };
}

const VARIANTS = [
  ...[0, 1, 2, 3].map((stage) => ({ stage, optimizer: 'device', weights: 'device' })),
  ...[1, 2, 3].map((stage) => ({ stage, optimizer: 'cpu', weights: 'device' })),
  { stage: 3, optimizer: 'cpu', weights: 'cpu' },
] as Pick<Setup, 'stage' | 'optimizer' | 'weights'>[];

/**
 * Returns the memory of one rank for each stage and offload: device memory by part, and host
 * memory. Allocates nothing. Throws DS_ARGUMENT unless `model` is a CausalLM and each number is in
 * its range. Source: DeepSpeed's estimate_zero2_model_states_mem_needs_all_live and
 * estimate_zero3_..., which omit activations.
 */
export function estimateMemory(
  model: CausalLM,
  options: EstimateMemoryOptions = {},
): MemoryEstimate[] {
  const op = 'zero.estimateMemory';
  if (!(model instanceof CausalLM)) {
    const expected = 'a language model of nn.models';
    throw new DsError({ code: 'DS_ARGUMENT', op, expected, got: formatValue(model) });
  }
  const sizes = sizesOf(model);
  const values = readOptions(op, options, namesOf.EstimateMemoryOptions);
  const readPositive = (name: 'ranks' | 'microBatch' | 'seq' | 'accumulation', fallback: number) =>
    requireInteger(`${op} ${name}`, values[name] ?? fallback, 1);
  const { bf16OptimizerStates: bf16States = false, superOffload: speculates = true } = values;
  const adamW = adamWFacts(bf16States);
  const stateBytes = requireFinite(`${op} stateBytes`, values.stateBytes ?? adamW.stateBytes, 0);
  const setup: Setup = {
    ...plainSetup,
    bf16States,
    ranks: readPositive('ranks', 1),
    microBatch: readPositive('microBatch', 1),
    seq: readPositive('seq', Math.min(1024, sizes.maxSeq)),
    accumulation: readPositive('accumulation', 1),
    precision: requireOneOf(`${op} precision`, values.precision ?? 'bf16', PRECISIONS),
    checkpointing: values.activationCheckpointing ?? model.config.activationCheckpointing === true,
    stateBytes,
    // Another number of bytes means another optimizer, which may not support split masters.
    canSplit: stateBytes === adamW.stateBytes,
    speculates,
  };
  requireLength(op, setup.seq, sizes);
  return VARIANTS.map((way) => {
    const { device, host } = predictMemory(sizes, { ...setup, ...way });
    return {
      stage: way.stage,
      offloadOptimizer: way.optimizer === 'cpu' ? 'cpu' : 'none',
      offloadParam: way.weights === 'cpu' ? 'cpu' : 'none',
      device: { ...device, total: totalBytes(device) },
      host: { ...host, total: totalBytes(host) },
    };
  });
}

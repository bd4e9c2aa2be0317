// DeepSpeed's configuration classes as functions of the same names: each returns its checked
// argument.
import type {
  InferenceCheckpointConfig as CheckpointSection,
  InferenceConfig,
  InferenceMoeConfig,
  InferenceQuantConfig,
  InferenceTensorParallelConfig,
} from '../../../types/inference-config.generated.js';
import { readTypedInference } from './index.js';

/** The configuration of initInference(). Source: deepspeed.inference.config. */
export type DeepSpeedInferenceConfig = InferenceConfig;
/** Its key `tensor_parallel`. Source: deepspeed.inference.config. */
export type DeepSpeedTPConfig = InferenceTensorParallelConfig;
/** Its key `moe`. Source: deepspeed.inference.config. */
export type DeepSpeedMoEConfig = InferenceMoeConfig;
/** Its key `quant`. Source: deepspeed.inference.config. */
export type QuantizationConfig = InferenceQuantConfig;
/** Its key `checkpoint_config`. Source: deepspeed.inference.config. */
export type InferenceCheckpointConfig = CheckpointSection;

type Key = 'tensor_parallel' | 'moe' | 'quant' | 'checkpoint_config';

/** One section, checked as a part of a configuration. */
const sectionOf = <Section extends object>(key: Key, given: Section): Section =>
  (readTypedInference({ [key]: given }) as Record<Key, Section>)[key];

/**
 * The configuration of initInference() under today's names. Throws DS_CONFIG for a key that is
 * unknown, wrong or not supported.
 */
export function DeepSpeedInferenceConfig(
  given: DeepSpeedInferenceConfig = {},
): DeepSpeedInferenceConfig {
  return readTypedInference(given);
}

/** Ranks that share layers: `tensor_parallel`. Throws DS_CONFIG. */
export function DeepSpeedTPConfig(given: DeepSpeedTPConfig = {}): DeepSpeedTPConfig {
  return sectionOf('tensor_parallel', given);
}

/** Mixtures of experts: `moe`. Throws DS_CONFIG. */
export function DeepSpeedMoEConfig(given: DeepSpeedMoEConfig = {}): DeepSpeedMoEConfig {
  return sectionOf('moe', given);
}

/** Weights in few bits: `quant`. Throws DS_CONFIG, also for quantized activations. */
export function QuantizationConfig(given: QuantizationConfig = {}): QuantizationConfig {
  return sectionOf('quant', given);
}

/** Folders of checkpoints: `checkpoint_config`. Throws DS_CONFIG. */
export function InferenceCheckpointConfig(
  given: InferenceCheckpointConfig = {},
): InferenceCheckpointConfig {
  return sectionOf('checkpoint_config', given);
}

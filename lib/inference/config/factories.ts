// DeepSpeed's inference configuration classes, as functions that check their argument and return
// it.
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
/** The key `tensor_parallel` of the configuration. Source: deepspeed.inference.config. */
export type DeepSpeedTPConfig = InferenceTensorParallelConfig;
/** The key `moe` of the configuration. Source: deepspeed.inference.config. */
export type DeepSpeedMoEConfig = InferenceMoeConfig;
/** The key `quant` of the configuration. Source: deepspeed.inference.config. */
export type QuantizationConfig = InferenceQuantConfig;
/** The key `checkpoint_config` of the configuration. Source: deepspeed.inference.config. */
export type InferenceCheckpointConfig = CheckpointSection;

type Key = 'tensor_parallel' | 'moe' | 'quant' | 'checkpoint_config';

/** Checks one section and returns it. */
const checkSection = <Section extends object>(key: Key, given: Section): Section =>
  (readTypedInference({ [key]: given }) as Record<Key, Section>)[key];

/**
 * Checks an initInference() configuration and returns it under the current key names. Throws
 * DS_CONFIG for an unknown, invalid or unsupported key.
 */
export function DeepSpeedInferenceConfig(
  given: DeepSpeedInferenceConfig = {},
): DeepSpeedInferenceConfig {
  return readTypedInference(given);
}

/** Checks the section `tensor_parallel`. Throws DS_CONFIG for unknown keys or invalid values. */
export function DeepSpeedTPConfig(given: DeepSpeedTPConfig = {}): DeepSpeedTPConfig {
  return checkSection('tensor_parallel', given);
}

/**
 * Checks the section `moe` (mixture of experts). Throws DS_CONFIG for unknown keys or invalid
 * values.
 */
export function DeepSpeedMoEConfig(given: DeepSpeedMoEConfig = {}): DeepSpeedMoEConfig {
  return checkSection('moe', given);
}

/** Checks the section `quant`. Throws DS_CONFIG, also for quantized activations. */
export function QuantizationConfig(given: QuantizationConfig = {}): QuantizationConfig {
  return checkSection('quant', given);
}

/** Checks the section `checkpoint_config`. Throws DS_CONFIG for unknown keys or invalid values. */
export function InferenceCheckpointConfig(
  given: InferenceCheckpointConfig = {},
): InferenceCheckpointConfig {
  return checkSection('checkpoint_config', given);
}

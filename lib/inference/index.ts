// Public API of the inference package.

/** Types of the configuration's sections. */
export type {
  InferenceMoeConfig,
  InferenceQuantActivationConfig,
  InferenceQuantConfig,
  InferenceQuantInitializationConfig,
  InferenceQuantQkvConfig,
  InferenceQuantWeightConfig,
  InferenceTensorParallelConfig,
  KvCacheConfig,
  SchedulingConfig,
  SpeculativeConfig,
} from '../../types/inference-config.generated.js';
export type { ChatEvent, ChatRequest, ChatResult, ChatTool } from './chat.js';
export {
  DeepSpeedInferenceConfig,
  DeepSpeedMoEConfig,
  DeepSpeedTPConfig,
  InferenceCheckpointConfig,
  QuantizationConfig,
} from './config/factories.js';
export { defaultInferenceConfig, type InferenceConfig } from './config/index.js';
export type { FinishReason, Generation, GenerationPiece } from './continuation.js';
export { InferenceEngine, type InferenceStats } from './engine.js';
export type { Format, StandardSchema } from './grammar/format.js';
export { type InitInferenceOptions, initInference } from './init-inference.js';
export type { GenerateRequest } from './request.js';
export type { SamplingOptions, TokenLogprob } from './sampling.js';

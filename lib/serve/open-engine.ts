// A folder as the commands take it, made into an engine: a model's, or one of training checkpoints.
import { type InferenceConfig, type InferenceEngine, initInference } from '../inference/index.js';

/** What there is to say of an engine beside its folder. */
export interface EngineOptions {
  config?: InferenceConfig;
}

/** Rejects as initInference() does. */
export function openEngine(
  folder: string,
  { config = {} }: EngineOptions = {},
): Promise<InferenceEngine> {
  return initInference(folder, config);
}

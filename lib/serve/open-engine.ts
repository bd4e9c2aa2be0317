// A folder as the commands take it, made into an engine: a model's, or one of training checkpoints.
import { type InferenceConfig, type InferenceEngine, initInference } from '../inference/index.js';

/** What there is to say of an engine beside its folder. */
export interface EngineOptions {
  config?: InferenceConfig;
  /** The folder of a tokenizer in place of the model's own. */
  tokenizer?: string;
}

/** Rejects as initInference() does. */
export function openEngine(
  folder: string,
  { config = {}, tokenizer }: EngineOptions = {},
): Promise<InferenceEngine> {
  return initInference(folder, config, { tokenizer });
}

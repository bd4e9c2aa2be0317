// A folder as the commands take it, made into an engine: a model's, or one of training checkpoints.
import { randomInt } from 'node:crypto';

import { type InferenceConfig, type InferenceEngine, initInference } from '../inference/index.js';
import { seed } from '../tensor/index.js';

/** Options of an engine apart from its folder. */
export interface EngineOptions {
  config?: InferenceConfig;
  /** The folder of a tokenizer in place of the model's own. */
  tokenizer?: string;
  /** Seed of requests without their own seed. Default: random. */
  seed?: number;
}

/** Bound of randomInt(). */
const SEEDS = 2 ** 48 - 1;

/** Rejects as initInference() does. */
export function openEngine(
  folder: string,
  { config = {}, tokenizer, seed: own = randomInt(SEEDS) }: EngineOptions = {},
): Promise<InferenceEngine> {
  seed(own);
  return initInference(folder, config, { tokenizer });
}

// Opens an engine for a command: of a model's folder, of training checkpoints, or of a name of the
// hub.
import { randomInt } from 'node:crypto';

import {
  type InferenceConfig,
  type InferenceEngine,
  type InitInferenceOptions,
  initInference,
} from '../inference/index.js';
import { argumentError } from '../runtime/input-errors.js';
import { seed } from '../tensor/index.js';
import { type EncoderEngine, isEncoderFolder, openEncoder } from './encoder-engine.js';

/** Options of an engine apart from its folder. */
export interface EngineOptions
  extends Pick<InitInferenceOptions, 'adapters' | 'maxAdapters' | 'maxAdapterRank'> {
  config?: InferenceConfig;
  /** The folder or name of a tokenizer in place of the model's own. */
  tokenizer?: string;
  /** Branch, tag or commit of a model of the hub. Default: "main". */
  revision?: string;
  /** Seed of requests without their own seed. Default: random. */
  seed?: number;
}

/** Bound of randomInt(). */
const SEEDS = 2 ** 48 - 1;

/** Rejects as initInference() does. */
export function openEngine(
  folder: string,
  { config = {}, seed: own = randomInt(SEEDS), ...others }: EngineOptions = {},
): Promise<InferenceEngine> {
  seed(own);
  return initInference(folder, config, others);
}

/** An engine that generates, or one that embeds or ranks, by the class of the folder's model. */
export async function openServed(
  folder: string,
  options: EngineOptions = {},
): Promise<InferenceEngine | EncoderEngine> {
  const isEncoder = await isEncoderFolder(folder, options.revision);
  if (!isEncoder) return openEngine(folder, options);
  if (options.adapters || options.maxAdapters) {
    const got = 'an encoder, or a classifier with one label';
    throw argumentError('ds serve --adapter', 'a model that generates', got);
  }
  return openEncoder(folder, options);
}

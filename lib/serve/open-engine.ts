// Opens an engine from a model folder, training checkpoints or a name on the hub.
import { randomInt } from 'node:crypto';

import {
  type InferenceConfig,
  type InferenceEngine,
  type InitInferenceOptions,
  initInference,
} from '../inference/index.js';
import { initServing } from '../inference/init-inference.js';
import { argumentError } from '../runtime/input-errors.js';
import { seed } from '../tensor/index.js';
import { type EncoderEngine, isEncoderFolder, openEncoder } from './encoder-engine.js';

/** Options of an engine, without its folder. */
export interface EngineOptions
  extends Pick<InitInferenceOptions, 'adapters' | 'maxAdapters' | 'maxAdapterRank'> {
  config?: InferenceConfig;
  /** Folder or name of a tokenizer that replaces the model's own. */
  tokenizer?: string;
  /** Branch, tag or commit of a model of the hub. Default: "main". */
  revision?: string;
  /** Seed of requests without their own seed. Default: random. */
  seed?: number;
}

/** Upper bound for randomInt(). */
const SEEDS = 2 ** 48 - 1;

/** Opens a generating engine by `init`. Rejects as initInference() does. */
export function openEngine(
  folder: string,
  { config = {}, seed: own = randomInt(SEEDS), ...others }: EngineOptions = {},
  init: typeof initServing = initInference,
): Promise<InferenceEngine> {
  seed(own);
  return init(folder, config, others);
}

/** Opens an engine that generates, embeds or ranks, by the class of the model. */
export async function openServed(
  folder: string,
  options: EngineOptions = {},
): Promise<InferenceEngine | EncoderEngine> {
  const isEncoder = await isEncoderFolder(folder, options.revision);
  if (!isEncoder) return openEngine(folder, options, initServing);
  if (options.adapters || options.maxAdapters) {
    const got = 'an encoder, or a classifier with one label';
    throw argumentError('ds serve --adapter', 'a model that generates', got);
  }
  return openEncoder(folder, options);
}

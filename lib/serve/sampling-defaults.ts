// Sampling defaults of a model, from its generation_config.json.
import type { JsonObject } from '../../types/json.js';
import { LEAST_REPETITION_PENALTY } from '../inference/sampling-options.js';
import type { ContinuationOptions } from './served-engine.js';

/** Names in the file, names here, and the check of a value. */
const KEYS: readonly (readonly [string, keyof ContinuationOptions, (value: number) => boolean])[] =
  [
    ['temperature', 'temperature', (value) => value >= 0],
    ['top_k', 'topK', (value) => Number.isSafeInteger(value) && value >= 0],
    ['top_p', 'topP', (value) => value > 0 && value <= 1],
    ['min_p', 'minP', (value) => value >= 0 && value <= 1],
    ['repetition_penalty', 'repetitionPenalty', (value) => value >= LEAST_REPETITION_PENALTY],
    ['max_new_tokens', 'maxNewTokens', (value) => Number.isSafeInteger(value) && value > 0],
  ];

/**
 * The sampling options of generation_config.json, without invalid values. "do_sample": false means
 * greedy sampling. Source: vLLM's --generation-config.
 */
export function samplingDefaults(description: object | null): ContinuationOptions {
  const { generation } = (description ?? {}) as { generation?: JsonObject | null };
  const defaults: Record<string, number> = { temperature: 1 };
  for (const [theirs, ours, isGood] of KEYS) {
    const value = generation?.[theirs];
    if (typeof value === 'number' && isGood(value)) defaults[ours] = value;
  }
  if (generation?.do_sample === false) defaults.temperature = 0;
  return defaults;
}

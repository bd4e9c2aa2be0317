// Reads the sampling defaults of a model from its generation_config.json.
import type { JsonObject } from '../../types/json.js';
import { SAMPLING } from '../inference/sampling-options.js';
import { integer, number, type Option } from '../runtime/option.js';
import type { ContinuationOptions } from './served-engine.js';

/** Sampling options by their names in the file. */
const DECLARED = {
  ...SAMPLING,
  topP: number('', { above: 0, max: 1, elsewhere: '`top_p`' }),
  maxNewTokens: integer('', { min: 1, elsewhere: '`max_new_tokens`' }),
};

/**
 * Returns the valid sampling options of generation_config.json. "do_sample": false means greedy
 * sampling. Source: vLLM's --generation-config.
 */
export function samplingDefaults(description: object | null): ContinuationOptions {
  const { generation } = (description ?? {}) as { generation?: JsonObject | null };
  const defaults: Record<string, number> = { temperature: 1 };
  for (const [name, option] of Object.entries(DECLARED)) {
    if (option.elsewhere === undefined) continue;
    const value = generation?.[option.elsewhere.replaceAll('`', '')];
    if (typeof value === 'number' && isValid(option, value)) defaults[name] = value;
  }
  if (generation?.do_sample === false) defaults.temperature = 0;
  return defaults;
}

function isValid(option: Option<unknown, unknown>, value: number): boolean {
  try {
    option.read('', value);
    return true;
  } catch {
    return false;
  }
}

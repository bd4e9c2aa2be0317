// The folder from which a model was loaded, and the description that a save writes.
import type { JsonObject } from '../../types/json.js';
import type { PretrainedDescription } from '../nn/pretrained-description.js';

/** Metadata of the folder that a model comes from. */
export interface ModelOrigin {
  /** The config.json of the folder. */
  config: JsonObject;
  /** The generation_config.json of the folder, or null. */
  generation: JsonObject | null;
}

/** Keys of a config.json that are stale after training or that exports write under other names. */
const STALE = [
  'dtype',
  'torch_dtype',
  'transformers_version',
  '_name_or_path',
  'auto_map',
  'rope_parameters',
  'quantization_config',
];

/**
 * Returns the model's own description merged with other entries of its folder, such as tokens and
 * sampling.
 */
export function mergeOrigin(
  { config, ...layout }: PretrainedDescription,
  origin: ModelOrigin | null,
): PretrainedDescription {
  const { config: sourceConfig = null, generation = null } = origin ?? {};
  const sourceEntries = Object.entries(sourceConfig ?? {}).filter(([key]) => !STALE.includes(key));
  const tokens = sourceEntries.filter(([key]) => key.endsWith('_token_id'));
  const merged = { ...Object.fromEntries(sourceEntries), ...config, ...Object.fromEntries(tokens) };
  return { ...layout, config: merged, ...(generation && { generation }) } as PretrainedDescription;
}

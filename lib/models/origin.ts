// The folder that a model comes from, and the description that a save writes.
import type { JsonObject } from '../../types/json.js';
import type { PretrainedDescription } from '../nn/pretrained-description.js';

/** Metadata of the folder that a model comes from. */
export interface Origin {
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

/** The model's own description, and other entries of its folder (tokens, sampling and so on). */
export function withOrigin(
  { config, ...layout }: PretrainedDescription,
  origin: Origin | null,
): PretrainedDescription {
  const { config: sourceConfig = null, generation = null } = origin ?? {};
  const kept = Object.entries(sourceConfig ?? {}).filter(([key]) => !STALE.includes(key));
  const tokens = kept.filter(([key]) => key.endsWith('_token_id'));
  const merged = { ...Object.fromEntries(kept), ...config, ...Object.fromEntries(tokens) };
  return { ...layout, config: merged, ...(generation && { generation }) } as PretrainedDescription;
}

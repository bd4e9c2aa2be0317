// Descriptions of models for other libraries.
import type { JsonObject } from '../../types/json.js';

/**
 * The result of Module.describe() for a model that `transformers` supports. Optional keys:
 * `generation`, the object of generation_config.json; `pieces`, the names that files use for parts
 * of a parameter (see checkpoint.Pieces).
 */
export interface PretrainedDescription extends JsonObject {
  /** The contents of config.json. */
  config: JsonObject;
  /** Parameters that files store as the transpose. Other names and layouts are the same. */
  transposed: string[];
}

// What models say of themselves that other libraries know, too.
import type { JsonObject } from '../../types/json.js';

/**
 * What Module.describe() says of a model that `transformers` knows, too. Under `generation` it may
 * have an object beside: what generation_config.json holds; under `pieces` the names that the files
 * have for parts of a parameter (see checkpoint.Pieces).
 */
export interface PretrainedDescription extends JsonObject {
  /** What config.json holds. */
  config: JsonObject;
  /** Parameters that are stored as the transpose of ours. Other names and layouts are the same. */
  transposed: string[];
}

// How a model looks to Hugging Face's transformers: data that checkpoints carry along, so that
// exports need no model.
import type { JsonObject } from '../../types/json.js';

/** What Module.describe() says of a model that `transformers` knows, too. */
export interface PretrainedDescription extends JsonObject {
  /** What config.json holds. */
  config: JsonObject;
  /** Parameters that are stored as the transpose of ours. Other names and layouts are the same. */
  transposed: string[];
}

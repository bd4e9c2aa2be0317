// Llama 2 and 3.
import { type FolderOptions, readPretrained } from '../model-folder.js';
import type { RotaryConfig, RotaryOptions, RotaryTraits } from '../rotary/config.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';

/** The sizes of a Llama, and how its activations are kept. */
export type LlamaConfig = Omit<RotaryConfig, 'window'>;

const TRAITS: RotaryTraits = {
  name: 'Llama',
  modelType: 'llama',
  architecture: 'LlamaForCausalLM',
  biases: { qkv: 'attentionBias', out: 'attentionBias', mlp: 'mlpBias' },
  qkNorm: false,
  window: 'none',
  defaults: { max_position_embeddings: 2048 },
};

/** Source: Touvron et al. 2023, Grattafiori et al. 2024; transformers' LlamaForCausalLM. */
export class Llama extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(given: LlamaConfig) {
    super(TRAITS, given);
  }

  /** @internal How folders of Hugging Face's become Llamas. */
  static readonly family = rotaryFamily(TRAITS, (config: LlamaConfig) => new Llama(config));

  /** models.fromPretrained() of a folder that holds a Llama; another is DS_CHECKPOINT. */
  static fromPretrained(dir: string, options: RotaryOptions & FolderOptions = {}): Promise<Llama> {
    return readPretrained(dir, [Llama.family], options);
  }
}

// Phi-3, 3.5 and 4: Llama with packed projections and optionally partial rotation of heads.
import { type FolderOptions, readPretrained } from '../model-folder.js';
import type { RotaryConfig, RotaryOptions, RotaryTraits } from '../rotary/config.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';

/** The sizes of a Phi-3 or a Phi-4, and how its activations are kept. */
export type Phi3Config = Omit<RotaryConfig, 'attentionBias' | 'mlpBias'>;

const TRAITS: RotaryTraits = {
  name: 'Phi3',
  modelType: 'phi3',
  architecture: 'Phi3ForCausalLM',
  biases: { qkv: false, out: false, mlp: false },
  qkNorm: false,
  window: 'uniform',
  packed: true,
  residualDropout: true,
  rope: {
    partial: true,
    types: ['longrope'],
    // Names that its own first files had for it.
    aliases: { su: 'longrope', yarn: 'longrope' },
    originalBeside: true,
  },
  defaults: {
    max_position_embeddings: 4096,
    original_max_position_embeddings: 4096,
    rms_norm_eps: 1e-5,
    pad_token_id: 32_000,
  },
};

/** Source: Abdin et al. 2024 (Phi-3, Phi-4); transformers' Phi3ForCausalLM. */
export class Phi3 extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(given: Phi3Config) {
    super(TRAITS, given);
  }

  /** @internal How folders of Hugging Face's become Phi-3s and Phi-4s. */
  static readonly family = rotaryFamily(TRAITS, (config: Phi3Config) => new Phi3(config));

  /**
   * models.fromPretrained() of a folder that holds a Phi-3 or a Phi-4; another is DS_CHECKPOINT.
   */
  static fromPretrained(dir: string, options: RotaryOptions & FolderOptions = {}): Promise<Phi3> {
    return readPretrained(dir, [Phi3.family], options);
  }
}

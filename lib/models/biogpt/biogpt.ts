// BioGPT: OPT with GELU and a scaled embedding.
import type { FamilyConfig } from '../rotary/config.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import type { RotaryTraits } from '../rotary/traits.js';

/** Options of BioGpt: sizes, and the mode of its activations. */
export type BioGptConfig = FamilyConfig<'residualDropout'>;

const TRAITS: RotaryTraits = {
  name: 'BioGpt',
  modelType: 'biogpt',
  architecture: 'BioGptForCausalLM',
  biases: { qkv: true, out: true, mlp: true },
  norm: {
    kind: 'layer',
    // transformers ignores layer_norm_eps.
    eps: ['norm_eps', 1e-5],
    last: 'layer_norm',
    block: { attention: ['self_attn_layer_norm', null], mlp: ['final_layer_norm', null] },
  },
  activation: { kind: 'gelu', names: ['gelu'] },
  names: { model: 'biogpt', head: 'output_projection' },
  positions: { table: 'embed_positions', offset: 2 },
  out: 'out_proj',
  feed: { first: 'fc1', second: 'fc2' },
  residualDropout: 'hidden_dropout_prob',
  window: 'none',
  scales: { embed: 'rootChannels' },
  keys: { attention_dropout: 'attention_probs_dropout_prob' },
  files: Object.fromEntries(
    ['fc1.weight', 'fc1.bias', 'fc2.weight', 'fc2.bias'].map((name) => [
      `biogpt.layers.*.mlp.${name}`,
      `biogpt.layers.*.${name}`,
    ]),
  ),
  only: { scale_embedding: [true], layerdrop: [0], activation_dropout: [0] },
  defaults: {
    max_position_embeddings: 1024,
    intermediate_size: 4096,
    hidden_dropout_prob: 0.1,
    attention_dropout: 0.1,
    pad_token_id: 1,
    tie_word_embeddings: true,
  },
};

/**
 * Language models published as BioGPT. Source: Luo et al. 2022; transformers' BioGptForCausalLM.
 */
export class BioGpt extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: BioGptConfig) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(TRAITS, (config: BioGptConfig) => new BioGpt(config));
}

// InternLM2: Llama with the queries of a key head, the key and the value in one matrix.
import type { FamilyConfig } from '../rotary/config.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import type { RotaryTraits } from '../rotary/traits.js';

/** Options of InternLm2: sizes, and the mode of its activations. */
export type InternLm2Config = FamilyConfig<'attentionBias'>;

const TRAITS: RotaryTraits = {
  name: 'InternLm2',
  modelType: 'internlm2',
  architecture: 'InternLM2ForCausalLM',
  biases: { qkv: 'attentionBias', out: 'attentionBias', mlp: false, key: 'bias' },
  norm: { block: { attention: ['attention_norm', null], mlp: ['ffn_norm', null] } },
  names: { embed: 'tok_embeddings', attention: 'attention', head: 'output' },
  perHead: 'wqkv',
  perGroup: true,
  out: 'wo',
  window: 'none',
  files: {
    'model.layers.*.mlp.gate_proj.weight': 'model.layers.*.feed_forward.w1.weight',
    'model.layers.*.mlp.up_proj.weight': 'model.layers.*.feed_forward.w3.weight',
    'model.layers.*.mlp.down_proj.weight': 'model.layers.*.feed_forward.w2.weight',
  },
  defaults: { max_position_embeddings: 2048, bias: true },
};

/**
 * Language models published as InternLM2, 2.5. Source: Cai et al. 2024 (InternLM2), and the code
 * beside its weights.
 */
export class InternLm2 extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: InternLm2Config) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(TRAITS, (config: InternLm2Config) => new InternLm2(config));
}

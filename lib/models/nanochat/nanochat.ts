// nanochat: norms without weights, also of queries and keys after their rotation; a squared ReLU.
import type { FamilyConfig } from '../rotary/config.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import { COMMON_ROPE, type RotaryTraits } from '../rotary/traits.js';

/** Options of NanoChat: sizes, and the mode of its activations. */
export type NanoChatConfig = FamilyConfig<'attentionBias' | 'scales'>;

const TRAITS: RotaryTraits = {
  name: 'NanoChat',
  modelType: 'nanochat',
  architecture: 'NanoChatForCausalLM',
  biases: { qkv: 'attentionBias', out: 'attentionBias', mlp: false },
  norm: { kind: 'bareRms' },
  qkNorm: 'head',
  qkNormLast: true,
  activation: { kind: 'relu2', names: ['relu2'] },
  feed: { first: 'fc1', second: 'fc2' },
  names: { embedNorm: 'embed_norm' },
  rope: { ...COMMON_ROPE, backward: true },
  scales: { logitCap: { key: 'final_logit_softcapping', fallback: 15 } },
  window: 'none',
  defaults: {
    max_position_embeddings: 2048,
    intermediate_size: 8192,
    num_attention_heads: 6,
    pad_token_id: 1,
  },
};

/**
 * Language models published as nanochat. Source: Karpathy 2025; transformers' NanoChatForCausalLM.
 */
export class NanoChat extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: NanoChatConfig) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(TRAITS, (config: NanoChatConfig) => new NanoChat(config));
}

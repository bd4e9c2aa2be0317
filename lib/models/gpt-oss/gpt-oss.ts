// gpt-oss: attention sinks, windows in every second layer, and experts with biases.
import type { PretrainedDescription } from '../../nn/pretrained-description.js';
import type { Family, ModelFolder } from '../model-folder.js';
import type { FamilyConfig, RotaryOptions } from '../rotary/config.js';
import type { MoeConfig } from '../rotary/mixture.js';
import { parseRotaryConfig } from '../rotary/pretrained.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import { COMMON_ROPE, type RotaryTraits } from '../rotary/traits.js';

/** Options of GptOss: sizes, and the mode of its activations. */
export interface GptOssConfig
  extends FamilyConfig<'attentionBias' | 'window' | 'routerAuxLossCoef'> {
  /** The experts; their width defaults to `hidden`. */
  moe: Omit<MoeConfig, 'sharedHidden' | 'normalize' | 'denseLayers'>;
}

const TRAITS: RotaryTraits = {
  name: 'GptOss',
  modelType: 'gpt_oss',
  architecture: 'GptOssForCausalLM',
  biases: { qkv: 'attentionBias', out: 'attentionBias', mlp: false },
  sinks: true,
  norm: { eps: ['rms_norm_eps', 1e-5] },
  window: 'layers',
  windowEvery: [null, 2],
  rope: COMMON_ROPE,
  moe: {
    experts: ['num_local_experts', 128],
    perToken: 4,
    hidden: 'intermediate_size',
    shared: false,
    choosesNorm: false,
    choosesLayers: false,
    routerBias: true,
    limit: 7,
    files: { block: 'mlp', router: 'router' },
  },
  only: { swiglu_limit: [7], swiglu_alpha: [1.702] },
  defaults: {
    max_position_embeddings: 131_072,
    attention_bias: true,
    sliding_window: 128,
    num_key_value_heads: 8,
    head_dim: 64,
    rope_theta: 150_000,
  },
};

/** transformers' scaling of a file that has none. */
const ROPE = {
  rope_type: 'yarn',
  factor: 32,
  beta_fast: 32,
  beta_slow: 1,
  truncate: false,
  original_max_position_embeddings: 4096,
};

function addRope({ config, tensors }: ModelFolder): ModelFolder {
  const isThere = ['rope_parameters', 'rope_scaling'].some((key) => config.get(key) !== null);
  return { tensors, config: isThere ? config : config.withContent({ rope_scaling: ROPE }) };
}

/**
 * Language models published as gpt-oss 20B, 120B. Source: OpenAI 2025; transformers'
 * GptOssForCausalLM.
 */
export class GptOss extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: GptOssConfig) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family: Family<GptOss, RotaryOptions> = {
    ...rotaryFamily(TRAITS, (config: GptOssConfig) => new GptOss(config)),
    build: (folder, options) =>
      new GptOss({ ...(parseRotaryConfig(TRAITS, addRope(folder)) as GptOssConfig), ...options }),
  };

  protected override described(): PretrainedDescription {
    const description = super.described();
    const { ropeScaling, ropeTheta } = this.config;
    // Without this section, a reader assumes ROPE.
    const plain = { rope_parameters: { rope_type: 'default', rope_theta: ropeTheta } };
    return ropeScaling
      ? description
      : { ...description, config: { ...description.config, ...plain } };
  }
}

// DeepSeek MoE: Llama's attention, a softmax router of many small experts, and shared experts.
import { isObject } from '../../runtime/is-object.js';
import type { Family } from '../model-folder.js';
import type { FamilyConfig, RotaryOptions } from '../rotary/config.js';
import { type MoeConfig, QWEN_FILES } from '../rotary/mixture.js';
import { parseRotaryConfig } from '../rotary/pretrained.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import type { RotaryTraits } from '../rotary/traits.js';

/** Options of Deepseek: sizes, and the mode of its activations. */
export interface DeepseekConfig extends FamilyConfig<'attentionBias'> {
  /** The experts, including the shared ones. Default: none, all blocks are dense. */
  moe?: MoeConfig & { sharedHidden: number };
}

const createTraits = (hasExperts: boolean): RotaryTraits => ({
  name: 'Deepseek',
  modelType: 'deepseek',
  architecture: 'DeepseekForCausalLM',
  biases: { qkv: 'attentionBias', out: 'attentionBias', mlp: false },
  window: 'none',
  ...(hasExperts && {
    moe: {
      experts: ['n_routed_experts', 64],
      perToken: 6,
      hidden: 'moe_intermediate_size',
      shared: 'ungated',
      choosesNorm: true,
      choosesLayers: 'first',
      scores: 'softmax',
      files: QWEN_FILES,
    },
  }),
  defaults: {
    max_position_embeddings: 2048,
    intermediate_size: 11_008,
    moe_intermediate_size: 1407,
  },
});

/**
 * Language models published as DeepSeekMoE 16B. Source: Dai et al. 2024, and the code beside its
 * weights.
 */
export class Deepseek extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: DeepseekConfig) {
    super(createTraits(isObject<DeepseekConfig>(options) && options.moe !== undefined), options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family: Family<Deepseek, RotaryOptions> = {
    ...rotaryFamily(createTraits(true), (config: DeepseekConfig) => new Deepseek(config)),
    build: (folder, options) => {
      const traits = createTraits(folder.config.get('n_routed_experts') !== null);
      return new Deepseek({ ...(parseRotaryConfig(traits, folder) as DeepseekConfig), ...options });
    },
  };
}

// Ling: experts, and queries, keys and values in one matrix. Version 2 has DeepSeek's router.
import { isObject } from '../../runtime/is-object.js';
import { requireType } from '../../runtime/require-type.js';
import type { Family, ModelFolder } from '../model-folder.js';
import type { FamilyConfig, RotaryOptions } from '../rotary/config.js';
import { type MoeConfig, QWEN_FILES } from '../rotary/mixture.js';
import { parseRotaryConfig } from '../rotary/pretrained.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import { COMMON_ROPE, type RotaryTraits } from '../rotary/traits.js';

/** Properties in which models of this family differ. */
interface Kind {
  /** Scores of the router. "sigmoid" is version 2. Default: "sigmoid". */
  scores?: 'sigmoid' | 'softmax';
  /** Whether heads of queries and keys have norms, as in version 2. Default: true. */
  headNorms?: boolean;
  /** Whether the head divides its rows by their norms. Default: false. */
  normalizedHead?: boolean;
}

/** Options of BailingMoe: sizes, and the mode of its activations. */
export interface BailingMoeConfig
  extends FamilyConfig<'attentionBias' | 'partialRotaryFactor'>,
    Kind {
  /** The experts, including the shared ones. */
  moe: MoeConfig & { sharedHidden: number };
}

const createTraits = ({
  scores = 'sigmoid',
  headNorms = true,
  normalizedHead = false,
}: Kind): RotaryTraits => ({
  name: 'BailingMoe',
  modelType: 'bailing_moe',
  alsoTypes: { bailing_moe_v2: {} },
  hasPredictors: true,
  architecture: scores === 'sigmoid' ? 'BailingMoeV2ForCausalLM' : 'BailingMoeForCausalLM',
  biases: { qkv: 'attentionBias', out: false, mlp: false, key: 'use_qkv_bias' },
  ...(headNorms && { qkNorm: 'head' }),
  packed: true,
  feed: 'gated',
  out: 'dense',
  normalizedHead,
  names: {
    embed: 'word_embeddings',
    attention: 'attention',
    qkv: 'query_key_value',
    qNorm: 'query_layernorm',
    kNorm: 'key_layernorm',
  },
  rope: { ...COMMON_ROPE, partial: true },
  window: 'none',
  moe: {
    experts: ['num_experts', 16],
    perToken: 2,
    hidden: 'moe_intermediate_size',
    shared: 'ungated',
    choosesNorm: true,
    choosesLayers: 'first',
    scores,
    files: { ...QWEN_FILES, ...(scores === 'sigmoid' && { choiceBias: 'gate.expert_bias' }) },
  },
  keys: { n_shared_experts: 'num_shared_experts', scoring_func: 'score_function' },
  only: {
    use_bias: [false],
    multi_gate: [false],
    norm_softmax: [false],
    moe_router_enable_expert_bias: [scores === 'sigmoid'],
  },
  written: {
    score_function: scores,
    use_qk_norm: headNorms,
    moe_router_enable_expert_bias: scores === 'sigmoid',
    norm_head: normalizedHead,
    use_bias: false,
  },
  defaults: { max_position_embeddings: 16_384, norm_topk_prob: true },
});

/**
 * Language models published as Ling and Ring: Lite, Plus, Mini 2.0, Flash 2.0, 1T. Source: Ling
 * team 2025, and the code beside its weights.
 */
export class BailingMoe extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: BailingMoeConfig) {
    const isGiven = isObject<BailingMoeConfig>(options);
    const { scores, headNorms, normalizedHead, ...sizes } = isGiven
      ? options
      : ({} as BailingMoeConfig);
    for (const [name, value] of Object.entries({ headNorms, normalizedHead })) {
      requireType(`BailingMoe ${name}`, value ?? false, 'boolean');
    }
    const kind = Object.fromEntries(
      Object.entries({ scores, headNorms, normalizedHead }).filter(
        ([, value]) => value !== undefined,
      ),
    );
    super(createTraits(kind), isGiven ? sizes : options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family: Family<BailingMoe, RotaryOptions> = {
    ...rotaryFamily(createTraits({}), (config: BailingMoeConfig) => new BailingMoe(config)),
    build: (folder, options) => new BailingMoe({ ...parse(folder), ...options }),
  };
}

/** Files of version 1 have none of these keys. */
function parse(folder: ModelFolder): BailingMoeConfig {
  const { config } = folder;
  config.requireOneOf('score_function', ['softmax', 'sigmoid']);
  const kind = {
    scores: config.get('score_function') === 'sigmoid' ? 'sigmoid' : 'softmax',
    headNorms: config.flag('use_qk_norm', false),
    normalizedHead: config.flag('norm_head', false),
  } as const;
  return { ...(parseRotaryConfig(createTraits(kind), folder) as BailingMoeConfig), ...kind };
}

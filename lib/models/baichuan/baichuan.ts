// Baichuan: queries, keys and values in one matrix; 7B rotates them, 13B has linear biases.
import type { PretrainedDescription } from '../../nn/pretrained-description.js';
import { isObject } from '../../runtime/is-object.js';
import { requireType } from '../../runtime/require-type.js';
import type { Family, ModelFolder } from '../model-folder.js';
import type { FamilyConfig, RotaryOptions } from '../rotary/config.js';
import { parseRotaryConfig } from '../rotary/pretrained.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import type { RotaryTraits } from '../rotary/traits.js';

/** Options of Baichuan: sizes, and the mode of its activations. */
export interface BaichuanConfig extends FamilyConfig {
  /** Whether scores have linear biases in place of rotation, as in 13B. Default: false. */
  alibi?: boolean;
  /** Whether the head divides its rows by their norms, as in version 2. Default: false. */
  normalizedHead?: boolean;
}

const createTraits = (alibi: boolean, normalizedHead: boolean): RotaryTraits => ({
  name: 'Baichuan',
  modelType: 'baichuan',
  architecture: 'BaichuanForCausalLM',
  biases: { qkv: false, out: false, mlp: false },
  ...(alibi && { positions: 'alibi' }),
  packed: true,
  feed: 'gated',
  normalizedHead,
  window: 'none',
  names: { qkv: 'W_pack' },
  ...(alibi && { keys: { max_position_embeddings: 'model_max_length' } }),
  defaults: { max_position_embeddings: 4096 },
});

/**
 * Language models published as Baichuan 7B, 13B, Baichuan 2. Source: Baichuan 2023, and the code
 * beside its weights.
 */
export class Baichuan extends RotaryLM {
  private readonly normalizedHead: boolean;

  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: BaichuanConfig) {
    const isGiven = isObject<BaichuanConfig>(options);
    const {
      alibi = false,
      normalizedHead = false,
      ...sizes
    } = isGiven ? options : ({} as BaichuanConfig);
    requireType('Baichuan alibi', alibi, 'boolean');
    requireType('Baichuan normalizedHead', normalizedHead, 'boolean');
    super(createTraits(alibi, normalizedHead), isGiven ? sizes : options);
    this.normalizedHead = normalizedHead;
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family: Family<Baichuan, RotaryOptions> = {
    ...rotaryFamily(createTraits(false, false), (config: BaichuanConfig) => new Baichuan(config)),
    build: (folder, options) => new Baichuan({ ...parse(folder), ...options }),
  };

  protected override described(): PretrainedDescription {
    const description = super.described();
    if (!this.normalizedHead) return description;
    return { ...description, config: { ...description.config, z_loss_weight: 0 } };
  }
}

/** Only 7B has max_position_embeddings; only version 2 has z_loss_weight or this vocabulary. */
function parse(folder: ModelFolder): BaichuanConfig {
  const { config } = folder;
  const alibi = !config.has('max_position_embeddings');
  const normalizedHead = config.has('z_loss_weight') || config.get('vocab_size') === 125_696;
  return {
    ...parseRotaryConfig(createTraits(alibi, normalizedHead), folder),
    alibi,
    normalizedHead,
  };
}

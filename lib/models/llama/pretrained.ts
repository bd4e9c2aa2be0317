// Llama to and from Hugging Face: config.json in both of its generations, and the names of the
// tensors.
import type { JsonObject, JsonValue } from '../../../types/json.js';
import type { PretrainedDescription } from '../../nn/module.js';
import type { ModelConfig, ModelFolder } from '../model-folder.js';
import type { LlamaConfig, LlamaSizes } from './config.js';
import type { RopeScaling } from './rotary.js';

/** Tables that old checkpoints carry among the weights. */
const TABLE = /\.rotary_emb\.inv_freq$/;

/** What a Family (model-folder.ts) says of Llama's folders; llama.ts adds how a model is built. */
export const LLAMA_FOLDERS = {
  modelType: 'llama',
  architecture: 'Llama has the published architecture: SiLU gates, rotary positions, RMS norms.',
  layout: () => ({
    transposed: new Set<string>(),
    nameOf: (name: string) => (TABLE.test(name) ? null : name),
  }),
};

/** Keys whose other values change what the model computes. Absent keys have the first value. */
const SUPPORTED: Record<string, readonly unknown[]> = {
  hidden_act: ['silu', 'swish'],
  pretraining_tp: [1],
  partial_rotary_factor: [1],
};

/** The sizes in a config.json. Throws DS_CHECKPOINT for a Llama that computes something else. */
export function parseLlamaConfig({ config, tensors }: ModelFolder): LlamaConfig {
  for (const [key, values] of Object.entries(SUPPORTED)) config.requireOneOf(key, values);
  const layers = config.size('num_hidden_layers');
  const last = `model.layers.${layers - 1}.input_layernorm.weight`;
  if (!tensors.has(last)) {
    throw config.refusal('num_hidden_layers', `weights of ${layers} layers`, `none called ${last}`);
  }
  const [channels, heads] = [config.size('hidden_size'), config.size('num_attention_heads')];
  return {
    ...{ layers, channels, heads },
    vocabSize: config.size('vocab_size'),
    hidden: config.size('intermediate_size'),
    maxSeq: config.size('max_position_embeddings', 2048),
    kvHeads: config.size('num_key_value_heads', heads),
    headDim: config.size('head_dim', channels / heads),
    eps: config.positive('rms_norm_eps', 1e-6),
    initializerRange: config.positive('initializer_range', 0.02),
    tied: config.flag('tie_word_embeddings', false),
    attentionBias: config.flag('attention_bias', false),
    mlpBias: config.flag('mlp_bias', false),
    ...parseRope(config),
  };
}

/** rope_parameters, or rope_theta and rope_scaling as they were called before. */
function parseRope(config: ModelConfig): Pick<LlamaConfig, 'ropeTheta' | 'ropeScaling'> {
  const isNew = config.get('rope_parameters') !== null;
  const section = config.section(isNew ? 'rope_parameters' : 'rope_scaling');
  const ropeTheta = (isNew ? section : config).positive('rope_theta', 10_000);
  return { ropeTheta, ropeScaling: parseScaling(section) };
}

function parseScaling(section: ModelConfig): RopeScaling | null {
  const key = section.get('rope_type') === null ? 'type' : 'rope_type';
  const type = section.get(key, 'default');
  if (type === 'default') return null;
  if (type !== 'linear' && type !== 'llama3') {
    throw section.refusal(key, '"default", "linear" or "llama3"', type);
  }
  const factor = section.positive('factor');
  if (type === 'linear') return { type, factor };
  return {
    ...{ type, factor },
    lowFreqFactor: section.positive('low_freq_factor'),
    highFreqFactor: section.positive('high_freq_factor'),
    originalMaxSeq: section.size('original_max_position_embeddings'),
  };
}

/** What transformers needs to read the model. */
export function describeLlama(sizes: LlamaSizes): PretrainedDescription {
  const config: JsonObject = {
    architectures: ['LlamaForCausalLM'],
    model_type: LLAMA_FOLDERS.modelType,
    vocab_size: sizes.vocabSize,
    hidden_size: sizes.channels,
    intermediate_size: sizes.hidden,
    num_hidden_layers: sizes.layers,
    num_attention_heads: sizes.heads,
    num_key_value_heads: sizes.kvHeads,
    head_dim: sizes.headDim,
    hidden_act: 'silu',
    max_position_embeddings: sizes.maxSeq,
    rms_norm_eps: sizes.eps,
    rope_theta: sizes.ropeTheta,
    rope_scaling: describeScaling(sizes.ropeScaling),
    attention_bias: sizes.attentionBias,
    attention_dropout: 0,
    mlp_bias: sizes.mlpBias,
    initializer_range: sizes.initializerRange,
    tie_word_embeddings: sizes.tied,
  };
  return { config, transposed: [] };
}

function describeScaling(scaling: RopeScaling | null): JsonValue {
  if (!scaling) return null;
  const { type, factor } = scaling;
  if (type === 'linear') return { rope_type: type, type, factor };
  return {
    ...{ rope_type: type, factor },
    low_freq_factor: scaling.lowFreqFactor,
    high_freq_factor: scaling.highFreqFactor,
    original_max_position_embeddings: scaling.originalMaxSeq,
  };
}

// Creates the models that try-gguf.mjs compares with llama.cpp: every family, with computed
// weights.
'use strict';
const { readFileSync } = require('node:fs');
const { join } = require('node:path');

const golden = join(__dirname, '..', '..', 'test', 'golden', 'transformers', 'models');
/** Sizes that fit all blocks, and settings that llama.cpp fixes. */
const SIZES = {
  hidden_size: 256,
  intermediate_size: 512,
  vocab_size: 1016,
  max_position_embeddings: 512,
  num_attention_heads: 4,
  num_key_value_heads: 2,
  head_dim: 64,
  initializer_range: 0.08,
};
const LLAMA3 = {
  rope_type: 'llama3',
  factor: 8,
  low_freq_factor: 1,
  high_freq_factor: 4,
  original_max_position_embeddings: 128,
};
const LONGROPE = {
  original_max_position_embeddings: 512,
  partial_rotary_factor: 0.75,
  rope_scaling: {
    type: 'longrope',
    short_factor: Array.from({ length: 24 }, (_, i) => 1 + i / 50),
    long_factor: Array.from({ length: 24 }, (_, i) => 1 + i / 5),
  },
};
const PLAIN = { rope_type: 'default', rope_theta: 10_000 };
const DEEPSEEK = {
  num_key_value_heads: 4,
  head_dim: 32,
  moe_intermediate_size: 256,
  q_lora_rank: 128,
  kv_lora_rank: 256,
  qk_nope_head_dim: 64,
  qk_rope_head_dim: 32,
  v_head_dim: 64,
  rope_parameters: {
    rope_type: 'yarn',
    rope_theta: 10_000,
    factor: 8,
    beta_fast: 32,
    beta_slow: 1,
    original_max_position_embeddings: 64,
    mscale: 0.7,
    mscale_all_dim: 0.7,
  },
};
/** Value heads of a delta net serve several key heads. */
const DELTA = {
  linear_num_key_heads: 2,
  linear_num_value_heads: 4,
  linear_key_head_dim: 64,
  linear_value_head_dim: 64,
};
/** Of models with many layers. */
const SMALL = { num_key_value_heads: 4, head_dim: 16, hidden_size: 64, intermediate_size: 64 };
const GEMMA_LAYERS = ['sliding_attention', 'full_attention'];
const FAMILIES = {
  llama: { rope_scaling: LLAMA3, rope_parameters: null },
  'llama-tied': {},
  qwen2: {},
  qwen3: {},
  granite: {},
  olmo2: {},
  gemma: {},
  // llama.cpp ignores the window of Phi-3.
  phi3: { sliding_window: null },
  'phi3-longrope': { rope_parameters: null, ...LONGROPE },
  mistral: { sliding_window: null },
  mixtral: { output_router_logits: false },
  'qwen3-moe': { moe_intermediate_size: 256 },
  smollm3: { num_hidden_layers: 4, no_rope_layers: [1, 1, 1, 0] },
  gemma2: { query_pre_attn_scalar: 64, sliding_window: 16 },
  gemma3: {
    query_pre_attn_scalar: 64,
    sliding_window: 16,
    num_hidden_layers: 6,
    rope_parameters: null,
    rope_theta: 1e6,
    rope_local_base_freq: 10_000,
    layer_types: Array.from({ length: 6 }, (_, i) =>
      i < 5 ? 'sliding_attention' : 'full_attention',
    ),
  },
  stablelm: {},
  'stablelm-parallel': {},
  phi: {},
  cohere: {},
  glm4: {},
  starcoder2: { sliding_window: null },
  cohere2: {
    sliding_window: 16,
    num_hidden_layers: 4,
    layer_types: Array.from({ length: 4 }, (_, i) =>
      i < 3 ? 'sliding_attention' : 'full_attention',
    ),
  },
  ernie: { use_bias: false },
  exaone4: {
    sliding_window: null,
    sliding_window_pattern: null,
    layer_types: ['full_attention', 'full_attention'],
  },
  arcee: {},
  nemotron: {},
  'seed-oss': { mlp_bias: false },
  olmo: {},
  'gpt-neox': {},
  internlm2: {},
  falcon: { num_kv_heads: 2, ffn_hidden_size: 512 },
  'falcon-sequential': {
    parallel_attn: true,
    new_decoder_architecture: false,
    multi_query: true,
    bias: false,
    ffn_hidden_size: 512,
  },
  bloom: { n_head: 4, seq_length: 512 },
  'gpt-bigcode': { n_embd: 256, n_inner: 512, n_head: 4, n_positions: 512 },
  'qwen2-moe': {
    norm_topk_prob: false,
    mlp_only_layers: [],
    use_sliding_window: false,
    moe_intermediate_size: 256,
    shared_expert_intermediate_size: 256,
    layer_types: null,
    output_router_logits: false,
  },
  olmoe: { num_key_value_heads: 4, norm_topk_prob: false, output_router_logits: false },
  'granite-moe': { output_router_logits: false },
  dots1: {
    moe_intermediate_size: 256,
    use_sliding_window: false,
    layer_types: null,
    num_key_value_heads: 4,
  },
  'glm4-moe': { moe_intermediate_size: 256, n_group: 1, topk_group: 1 },
  'minimax-m2': {},
  hunyuan: { rope_parameters: null },
  'ernie-moe': { moe_intermediate_size: 256 },
  'gpt-oss': { head_dim: 64, sliding_window: 16, num_local_experts: 4 },
  'deepseek-v3': DEEPSEEK,
  'deepseek-v2': { ...DEEPSEEK, n_group: 1, topk_group: 1, topk_method: 'greedy' },
  'glm4-moe-lite': { ...DEEPSEEK, n_group: 1, topk_group: 1, rope_parameters: PLAIN },
  gemma4: {
    num_hidden_layers: 4,
    layer_types: [...GEMMA_LAYERS, ...GEMMA_LAYERS],
    per_layer_config: { 1: { head_dim: 128 }, 3: { head_dim: 128 } },
    sliding_window: 16,
    hidden_size_per_layer_input: 32,
    vocab_size_per_layer_input: 1016,
  },
  'gemma4-moe': {
    per_layer_config: { 1: { head_dim: 128, num_key_value_heads: 1 } },
    final_logit_softcapping: 2.5,
    sliding_window: 16,
    moe_intermediate_size: 256,
  },
  'qwen3-next': {
    ...DELTA,
    moe_intermediate_size: 256,
    shared_expert_intermediate_size: 256,
    mlp_only_layers: [],
  },
  'qwen3-5': DELTA,
  'qwen3-5-moe': {
    ...DELTA,
    moe_intermediate_size: 256,
    shared_expert_intermediate_size: 256,
  },
  olmo3: { sliding_window: 16 },
  glm: {},
  minicpm: { dim_model_base: 128 },
  'granite-hybrid': { shared_intermediate_size: 512 },
  ministral3: {
    rope_parameters: {
      rope_type: 'yarn',
      rope_theta: 10_000,
      factor: 8,
      beta_fast: 32,
      beta_slow: 1,
      original_max_position_embeddings: 16,
      mscale: 1,
      mscale_all_dim: 1,
      llama_4_scaling_beta: 0.3,
    },
  },
  exaone: { num_layers: 2, rope_parameters: null, rope_scaling: LLAMA3 },
  apertus: { rope_parameters: null, rope_scaling: LLAMA3 },
  // llama.cpp decides by the number of layers.
  baichuan: { num_hidden_layers: 32, ...SMALL },
  'baichuan-alibi': {
    num_hidden_layers: 40,
    ...SMALL,
    max_position_embeddings: undefined,
    model_max_length: 512,
  },
};

/** The model of a family; its weights are the same on every machine. */
function modelOf({ nn, noGrad, Tensor }, name) {
  const config = JSON.parse(readFileSync(join(golden, name, 'config.json'), 'utf8'));
  const all = Object.entries({ ...config, ...SIZES, ...FAMILIES[name] });
  const given = all.filter(([, value]) => value !== undefined);
  const model = nn.models.fromConfig(Object.fromEntries(given));
  let state = 12_345;
  for (const [path, parameter] of model.namedParameters()) {
    const isNorm = /norm|ln_/.test(path) && !/^gemma(?!4)/.test(config.model_type);
    // Gemma 4 does not scale scores: with a norm of 1, differences of rounding decide them.
    const middle = config.model_type === 'gemma4_text' && path.includes('q_norm') ? 0.125 : 1;
    const values = new Float32Array(parameter.numel);
    for (let i = 0; i < values.length; ++i) {
      state = (Math.imul(state, 1_103_515_245) + 12_345) >>> 0;
      values[i] = (isNorm ? middle : 0) + ((state >>> 8) / 2 ** 24 - 0.5) * 0.25;
    }
    noGrad(() => parameter.copy_(Tensor.from(values).reshape(parameter.shape)));
  }
  return model;
}

/** The types of files of a family. */
const typesOf = (name) => [
  'F32',
  'F16',
  'Q8_0',
  'Q4_K_M',
  ...(name === 'gpt-oss' ? ['MXFP4'] : []),
];

module.exports = { FAMILIES, modelOf, typesOf };

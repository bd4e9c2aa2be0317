// The supported architectures of GGUF files. Source: llama.cpp's conversion script and its list of
// tensor names.
import { F32 } from '../../checkpoint/index.js';
import type { GgufArchitecture } from './architecture.js';
import { BAICHUAN } from './baichuan.js';
import { DELTA_35 } from './delta.js';
import type { Entries } from './entries.js';
import { GATE_UP, STACKED_HALVES } from './layouts.js';
import { MIXTURES } from './mixtures.js';
import { shortest } from './read-rope.js';
import { AFTER, GRANITE, MIXTRAL, plainFeed, SECOND, WIDE_FEED } from './shared-names.js';

const GEMMA = {
  hasOffsetNorms: true,
  fixed: { hidden_activation: 'gelu_pytorch_tanh', tie_word_embeddings: true },
} as const;

/** All supported architectures. */
export const ARCHITECTURES: readonly GgufArchitecture[] = [
  {
    name: 'llama',
    modelTypes: ['llama', 'mistral', 'mixtral'],
    isPaired: true,
    className: 'LlamaForCausalLM',
    mixture: {
      modelType: 'mixtral',
      className: 'MixtralForCausalLM',
      experts: 'num_local_experts',
    },
    experts: MIXTRAL,
  },
  {
    name: 'qwen2',
    modelTypes: ['qwen2'],
    className: 'Qwen2ForCausalLM',
    fixed: { use_sliding_window: false },
  },
  {
    name: 'qwen3',
    modelTypes: ['qwen3'],
    className: 'Qwen3ForCausalLM',
    fixed: { use_sliding_window: false },
  },
  { name: 'gemma', modelTypes: ['gemma'], className: 'GemmaForCausalLM', ...GEMMA },
  {
    name: 'gemma2',
    modelTypes: ['gemma2'],
    className: 'Gemma2ForCausalLM',
    ...GEMMA,
    names: AFTER,
    numbers: {
      attn_logit_softcapping: 'attn_logit_softcapping',
      final_logit_softcapping: 'final_logit_softcapping',
    },
    window: { fullEvery: 2 },
  },
  {
    name: 'gemma3',
    modelTypes: ['gemma3_text'],
    className: 'Gemma3ForCausalLM',
    ...GEMMA,
    names: AFTER,
    window: { fullEvery: 6 },
  },
  {
    name: 'gemma4',
    modelTypes: ['gemma4_text'],
    className: 'Gemma4ForCausalLM',
    hasKinds: true,
    window: 'listed',
    windowRope: 'base',
    lacksBiases: true,
    outside: {
      'model.embed_tokens_per_layer': 'per_layer_token_embd',
      'model.per_layer_model_projection': 'per_layer_model_proj',
      'model.per_layer_projection_norm': 'per_layer_proj_norm',
    },
    names: {
      ...AFTER,
      per_layer_input_gate: 'inp_gate',
      per_layer_projection: 'proj',
      post_per_layer_input_norm: 'post_norm',
      'router.proj': 'ffn_gate_inp',
      pre_feedforward_layernorm_2: 'pre_ffw_norm_2',
      post_feedforward_layernorm_1: 'post_ffw_norm_1',
      post_feedforward_layernorm_2: 'post_ffw_norm_2',
    },
    mixture: {
      modelType: 'gemma4_text',
      className: 'Gemma4ForCausalLM',
      width: 'moe_intermediate_size',
    },
    experts: { router: 'router.proj' },
    rules: [
      { own: 'layer_scalar', stored: ['layer_output_scale.weight'] },
      { own: 'router.scale', stored: ['ffn_gate_inp.scale'] },
      { own: 'router.per_expert_scale', stored: ['ffn_down_exps.scale'] },
      { own: 'experts.gate_up_proj', stored: ['ffn_gate_up_exps.weight'] },
      {
        own: 'experts.gate_up_proj',
        layout: GATE_UP,
        stored: ['ffn_gate_exps.weight', 'ffn_up_exps.weight'],
      },
      { own: 'experts.down_proj', stored: ['ffn_down_exps.weight'] },
    ],
    fixed: { hidden_activation: 'gelu_pytorch_tanh', tie_word_embeddings: true },
    keys: { num_experts_per_tok: 'top_k_experts' },
  },
  {
    ...DELTA_35,
    name: 'qwen35',
    modelTypes: ['qwen3_5_text'],
    className: 'Qwen3_5ForCausalLM',
  },
  {
    name: 'olmo2',
    modelTypes: ['olmo3'],
    className: 'Olmo3ForCausalLM',
    names: AFTER,
    window: 'listed',
    windowRope: 'unscaled',
    lacksBiases: true,
    matches: (keys) => keys.number('attention.sliding_window', 0) > 0,
  },
  {
    name: 'chatglm',
    modelTypes: ['glm'],
    className: 'GlmForCausalLM',
    names: { 'mlp.gate_up_proj': 'ffn_up' },
  },
  {
    name: 'minicpm',
    modelTypes: ['minicpm'],
    className: 'MiniCPMForCausalLM',
    isPaired: true,
    lacksBiases: true,
    more({ keys }) {
      const [embed, residual] = ['embedding_scale', 'residual_scale'].map((key) =>
        keys.positive(key),
      );
      return {
        scale_emb: Number(embed),
        scale_depth: shortest(Number(residual) * Math.sqrt(keys.size('block_count'))),
        dim_model_base: shortest(keys.size('embedding_length') / keys.positive('logit_scale')),
      };
    },
    written: ({ scales, layers, channels }) => ({
      embedding_scale: new F32(scales?.embed ?? 1),
      residual_scale: new F32((scales?.residual ?? 1) / Math.sqrt(layers)),
      logit_scale: new F32(channels / (scales?.logits ?? channels)),
    }),
  },
  {
    // Its files have the tensors and the computation of Granite 3.
    name: 'granite',
    modelTypes: ['granitemoehybrid'],
    readAs: 'granite',
    isPaired: true,
    className: 'GraniteMoeHybridForCausalLM',
    matches: () => false,
    names: { 'shared_mlp.output_linear': 'ffn_down' },
    rules: [
      {
        own: 'shared_mlp.input_linear.weight',
        layout: STACKED_HALVES,
        stored: ['ffn_gate.weight', 'ffn_up.weight'],
      },
    ],
  },
  {
    name: 'mistral3',
    modelTypes: ['ministral3'],
    className: 'Ministral3ForCausalLM',
    isPaired: true,
    hasRopeSection: true,
    written: ({ ropeScaling }): Entries =>
      ropeScaling?.type === 'yarn' && ropeScaling.queryBeta !== undefined
        ? { 'attention.temperature_scale': new F32(ropeScaling.queryBeta) }
        : {},
  },
  {
    name: 'phi3',
    modelTypes: ['phi3'],
    className: 'Phi3ForCausalLM',
    window: 'all',
    names: { 'mlp.gate_up_proj': 'ffn_up' },
  },
  {
    name: 'smollm3',
    modelTypes: ['smollm3'],
    className: 'SmolLM3ForCausalLM',
    isPaired: true,
  },
  { name: 'olmo2', modelTypes: ['olmo2'], className: 'Olmo2ForCausalLM', names: AFTER },
  {
    name: 'granite',
    modelTypes: ['granite'],
    className: 'GraniteForCausalLM',
    isPaired: true,
    numbers: GRANITE,
  },
  {
    name: 'stablelm',
    modelTypes: ['stablelm'],
    className: 'StableLmForCausalLM',
    epsilon: 'layer_norm_eps',
    biasKey: 'use_qkv_bias',
    parallelBy: 'norm',
  },
  {
    name: 'phi2',
    modelTypes: ['phi'],
    className: 'PhiForCausalLM',
    epsilon: 'layer_norm_eps',
    outside: { 'model.final_layernorm': 'output_norm' },
    names: { 'self_attn.dense': 'attn_output', ...plainFeed('fc1', 'fc2') },
  },
  {
    name: 'starcoder2',
    modelTypes: ['starcoder2'],
    className: 'Starcoder2ForCausalLM',
    epsilon: 'norm_epsilon',
    biasKey: 'use_bias',
    names: plainFeed('c_fc', 'c_proj'),
    fixed: { sliding_window: null },
  },
  {
    name: 'command-r',
    modelTypes: ['cohere'],
    className: 'CohereForCausalLM',
    lacksBiases: true,
    epsilon: 'layer_norm_eps',
    numbers: { logit_scale: 'logit_scale' },
  },
  {
    name: 'cohere2',
    modelTypes: ['cohere2'],
    className: 'Cohere2ForCausalLM',
    lacksBiases: true,
    epsilon: 'layer_norm_eps',
    numbers: { logit_scale: 'logit_scale' },
    window: { fullEvery: 4 },
  },
  {
    name: 'glm4',
    modelTypes: ['glm4'],
    className: 'Glm4ForCausalLM',
    names: {
      post_self_attn_layernorm: 'post_attention_norm',
      post_mlp_layernorm: 'post_ffw_norm',
      'mlp.gate_up_proj': 'ffn_up',
    },
  },
  {
    name: 'ernie4_5',
    modelTypes: ['ernie4_5'],
    className: 'Ernie4_5ForCausalLM',
    biasKey: 'use_bias',
    lacksBiases: true,
  },
  {
    name: 'exaone4',
    modelTypes: ['exaone4'],
    className: 'Exaone4ForCausalLM',
    names: {
      post_attention_layernorm: 'post_attention_norm',
      post_feedforward_layernorm: 'post_ffw_norm',
    },
    fixed: { sliding_window: null },
  },
  {
    name: 'apertus',
    modelTypes: ['apertus'],
    className: 'ApertusForCausalLM',
    lacksBiases: true,
    names: { attention_layernorm: 'attn_norm', feedforward_layernorm: 'ffn_norm' },
    layerNumbers: [
      { own: 'mlp.act_fn.alpha_p', shape: [1], key: 'xielu.alpha_p' },
      { own: 'mlp.act_fn.alpha_n', shape: [1], key: 'xielu.alpha_n' },
      { own: 'mlp.act_fn.beta', shape: [], key: 'xielu.beta' },
      { own: 'mlp.act_fn.eps', shape: [], key: 'xielu.eps' },
    ],
  },
  {
    name: 'arcee',
    modelTypes: ['arcee'],
    className: 'ArceeForCausalLM',
    isPaired: true,
    lacksBiases: true,
  },
  {
    name: 'nemotron',
    modelTypes: ['nemotron'],
    className: 'NemotronForCausalLM',
    epsilon: 'norm_eps',
    hasOffsetNorms: true,
  },
  {
    name: 'seed_oss',
    modelTypes: ['seed_oss'],
    className: 'SeedOssForCausalLM',
    names: SECOND,
    lacksBiases: 'feed',
  },
  {
    name: 'olmo',
    modelTypes: ['olmo'],
    className: 'OlmoForCausalLM',
    isPaired: true,
    epsilon: 'layer_norm_eps',
    fixed: { layer_norm_eps: 1e-5 },
    lacksBiases: true,
  },
  {
    name: 'gptneox',
    modelTypes: ['gpt_neox'],
    className: 'GPTNeoXForCausalLM',
    epsilon: 'layer_norm_eps',
    parallelBy: 'key',
    hasRopeSection: true,
    outside: {
      'gpt_neox.embed_in': 'token_embd',
      'gpt_neox.final_layer_norm': 'output_norm',
      embed_out: 'output',
    },
    blocks: 'gpt_neox.layers',
    joined: { name: 'attention.query_key_value', isSplit: false },
    names: { 'attention.dense': 'attn_output', ...WIDE_FEED },
  },
  {
    name: 'bloom',
    modelTypes: ['bloom'],
    className: 'BloomForCausalLM',
    lacksRope: true,
    epsilon: 'layer_norm_epsilon',
    outside: {
      'transformer.word_embeddings': 'token_embd',
      'transformer.word_embeddings_layernorm': 'token_embd_norm',
      'transformer.ln_f': 'output_norm',
    },
    blocks: 'transformer.h',
    joined: { name: 'self_attention.query_key_value', isSplit: false },
    names: { 'self_attention.dense': 'attn_output', ...WIDE_FEED },
    keys: {
      num_hidden_layers: 'n_layer',
      num_attention_heads: 'n_head',
      max_position_embeddings: 'seq_length',
    },
  },
  {
    name: 'falcon',
    modelTypes: ['falcon'],
    className: 'FalconForCausalLM',
    epsilon: 'layer_norm_epsilon',
    biasKey: 'bias',
    lacksBiases: true,
    outside: { 'transformer.word_embeddings': 'token_embd', 'transformer.ln_f': 'output_norm' },
    blocks: 'transformer.h',
    joined: { name: 'self_attention.query_key_value', isSplit: false },
    names: { 'self_attention.dense': 'attn_output', ...WIDE_FEED },
    namesIf: {
      tensor: 'blk.0.attn_norm_2.weight',
      names: { ln_mlp: 'attn_norm', ln_attn: 'attn_norm_2' },
    },
    keys: { num_key_value_heads: 'num_kv_heads', intermediate_size: 'ffn_hidden_size' },
    more: ({ has, kvHeads }) => {
      const norms = has('blk.0.attn_norm_2.weight') ? 2 : 1;
      return {
        new_decoder_architecture: norms === 2 || kvHeads > 1,
        multi_query: kvHeads === 1,
        num_ln_in_parallel_attn: norms,
        parallel_attn: true,
        alibi: false,
      };
    },
  },
  {
    name: 'starcoder',
    modelTypes: ['gpt_bigcode'],
    className: 'GPTBigCodeForCausalLM',
    epsilon: 'layer_norm_epsilon',
    lacksRope: true,
    outside: {
      'transformer.wte': 'token_embd',
      'transformer.wpe': 'position_embd',
      'transformer.ln_f': 'output_norm',
    },
    blocks: 'transformer.h',
    names: {
      ln_1: 'attn_norm',
      'attn.c_attn': 'attn_qkv',
      'attn.c_proj': 'attn_output',
      ln_2: 'ffn_norm',
      ...plainFeed('c_fc', 'c_proj'),
    },
    keys: {
      num_hidden_layers: 'n_layer',
      num_attention_heads: 'n_head',
      hidden_size: 'n_embd',
      intermediate_size: 'n_inner',
      max_position_embeddings: 'n_positions',
    },
  },
  ...BAICHUAN,
  {
    // Its files have the tensors and the computation of Llama.
    name: 'internlm2',
    modelTypes: ['internlm2'],
    className: 'InternLM2ForCausalLM',
    isPaired: true,
    lacksBiases: true,
    readAs: 'llama',
    outside: { 'model.tok_embeddings': 'token_embd', output: 'output' },
    joined: { name: 'attention.wqkv', isSplit: true },
    names: {
      attention_norm: 'attn_norm',
      'attention.wo': 'attn_output',
      ffn_norm: 'ffn_norm',
      'feed_forward.w1': 'ffn_gate',
      'feed_forward.w3': 'ffn_up',
      'feed_forward.w2': 'ffn_down',
    },
  },
  {
    name: 'exaone',
    modelTypes: ['exaone'],
    className: 'ExaoneForCausalLM',
    outside: { 'transformer.wte': 'token_embd', 'transformer.ln_f': 'output_norm' },
    blocks: 'transformer.h',
    names: {
      ln_1: 'attn_norm',
      ln_2: 'ffn_norm',
      'attn.attention.out_proj': 'attn_output',
      'attn.attention.q_proj': 'attn_q',
      'attn.attention.k_proj': 'attn_k',
      'attn.attention.v_proj': 'attn_v',
      'mlp.c_fc_0': 'ffn_gate',
      'mlp.c_fc_1': 'ffn_up',
      'mlp.c_proj': 'ffn_down',
    },
    keys: { num_hidden_layers: 'num_layers', rms_norm_eps: 'layer_norm_epsilon' },
  },
  {
    name: 'hunyuan-dense',
    modelTypes: ['hunyuan_v1_dense'],
    className: 'HunYuanDenseV1ForCausalLM',
    lacksBiases: true,
    names: {
      'self_attn.query_layernorm': 'attn_q_norm',
      'self_attn.key_layernorm': 'attn_k_norm',
    },
  },
  ...MIXTURES,
];

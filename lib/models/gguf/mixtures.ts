// Lists the supported architectures of GGUF files that always have experts.
import type { GgufArchitecture } from './architecture.js';
import { DELTA, DELTA_35 } from './delta.js';
import { GATE_UP_BIAS, GATE_UP_COLUMNS, LATENT_ROWS, TRANSPOSED } from './layouts.js';
import {
  createSharedExpertNames,
  GRANITE_NUMBERS,
  MIXTRAL,
  NORM_AFTER_ATTENTION,
} from './shared-names.js';

/** llama.cpp's numbers of the scores of routers. */
export const [SOFTMAX, SIGMOID_GATE] = [1, 2];

/** Mixtures of DeepSeek-V3's kind, with plain attention. */
const SIGMOID = {
  experts: 'n_routed_experts',
  width: 'moe_intermediate_size',
  normalizes: 'key',
  isSigmoid: true,
  mayLead: true,
  shared: 'ungated',
  choiceBias: 'mlp.gate.e_score_correction_bias',
} as const;

/** Names of latent attention. */
const LATENT = {
  'self_attn.q_a_proj': 'attn_q_a',
  'self_attn.q_a_layernorm': 'attn_q_a_norm',
  'self_attn.q_b_proj': 'attn_q_b',
  'self_attn.kv_a_proj_with_mqa': 'attn_kv_a_mqa',
  'self_attn.kv_a_layernorm': 'attn_kv_a_norm',
  'self_attn.kv_b_proj': 'attn_kv_b',
};

const DEEPSEEK = {
  name: 'deepseek2',
  isLatent: true,
  lacksBiases: true,
  names: { ...LATENT, ...createSharedExpertNames('shared_experts') },
  rules: [
    {
      modelName: 'self_attn.kv_b_proj.weight',
      layout: LATENT_ROWS,
      fileNames: ['attn_k_b.weight', 'attn_v_b.weight'],
    },
  ],
} as const;

/** The shared expert of Qwen's mixtures. */
const QWEN = {
  names: {
    ...createSharedExpertNames('shared_expert'),
    'mlp.shared_expert_gate': 'ffn_gate_inp_shexp',
  },
  numbers: { shared_expert_intermediate_size: 'expert_shared_feed_forward_length' },
};

export const MIXTURES: readonly GgufArchitecture[] = [
  {
    ...DELTA,
    name: 'qwen3next',
    modelTypes: ['qwen3_next'],
    className: 'Qwen3NextForCausalLM',
    mixture: {
      modelType: 'qwen3_next',
      className: 'Qwen3NextForCausalLM',
      width: 'moe_intermediate_size',
      shared: 'gated',
    },
    names: { ...DELTA.names, ...QWEN.names },
    numbers: QWEN.numbers,
    fixed: { norm_topk_prob: true },
  },
  {
    ...DELTA_35,
    name: 'qwen35moe',
    modelTypes: ['qwen3_5_moe_text'],
    className: 'Qwen3_5MoeForCausalLM',
    mixture: {
      modelType: 'qwen3_5_moe_text',
      className: 'Qwen3_5MoeForCausalLM',
      width: 'moe_intermediate_size',
      shared: 'gated',
    },
    names: { ...DELTA_35.names, ...QWEN.names },
    numbers: QWEN.numbers,
  },
  {
    name: 'qwen3moe',
    modelTypes: ['qwen3_moe'],
    className: 'Qwen3MoeForCausalLM',
    mixture: {
      modelType: 'qwen3_moe',
      className: 'Qwen3MoeForCausalLM',
      width: 'moe_intermediate_size',
    },
    fixed: { norm_topk_prob: true },
  },
  {
    name: 'qwen2moe',
    modelTypes: ['qwen2_moe'],
    className: 'Qwen2MoeForCausalLM',
    mixture: {
      modelType: 'qwen2_moe',
      className: 'Qwen2MoeForCausalLM',
      shared: 'gated',
      width: 'moe_intermediate_size',
      normalizes: false,
    },
    ...QWEN,
    fixed: { norm_topk_prob: false, use_sliding_window: false },
  },
  {
    name: 'olmoe',
    modelTypes: ['olmoe'],
    className: 'OlmoeForCausalLM',
    lacksSharedKeys: true,
    mixture: { modelType: 'olmoe', className: 'OlmoeForCausalLM', normalizes: false },
    fixed: { norm_topk_prob: false },
  },
  {
    name: 'granitemoe',
    modelTypes: ['granitemoe'],
    className: 'GraniteMoeForCausalLM',
    isPaired: true,
    mixture: {
      modelType: 'granitemoe',
      className: 'GraniteMoeForCausalLM',
      experts: 'num_local_experts',
    },
    experts: {
      router: 'block_sparse_moe.router.layer',
      gateUp: 'block_sparse_moe.input_linear',
      down: 'block_sparse_moe.output_linear',
    },
    numbers: GRANITE_NUMBERS,
  },
  {
    name: 'dots1',
    modelTypes: ['dots1'],
    className: 'Dots1ForCausalLM',
    names: createSharedExpertNames('shared_experts'),
    lacksSharedKeys: true,
    mixture: { modelType: 'dots1', className: 'Dots1ForCausalLM', ...SIGMOID },
    fixed: { use_sliding_window: false },
  },
  {
    name: 'glm4moe',
    modelTypes: ['glm4_moe'],
    className: 'Glm4MoeForCausalLM',
    mixture: { modelType: 'glm4_moe', className: 'Glm4MoeForCausalLM', ...SIGMOID },
    names: { ...createSharedExpertNames('shared_experts'), ...NORM_AFTER_ATTENTION },
    more: ({ has }) => ({ use_qk_norm: has('blk.0.attn_q_norm.weight') }),
  },
  {
    ...DEEPSEEK,
    modelTypes: ['deepseek_v3', 'glm4_moe_lite'],
    className: 'DeepseekV3ForCausalLM',
    matches: (keys) => keys.number('expert_gating_func', SOFTMAX) === SIGMOID_GATE,
    mixture: {
      modelType: 'deepseek_v3',
      className: 'DeepseekV3ForCausalLM',
      ...SIGMOID,
      hasGroups: true,
    },
  },
  {
    ...DEEPSEEK,
    modelTypes: ['deepseek_v2'],
    className: 'DeepseekV2ForCausalLM',
    mixture: {
      modelType: 'deepseek_v2',
      className: 'DeepseekV2ForCausalLM',
      ...SIGMOID,
      isSigmoid: false,
      normalizes: false,
      hasFactor: true,
      hasGroups: 'read',
    },
  },
  {
    name: 'gpt-oss',
    modelTypes: ['gpt_oss'],
    className: 'GptOssForCausalLM',
    mixture: {
      modelType: 'gpt_oss',
      className: 'GptOssForCausalLM',
      experts: 'num_local_experts',
    },
    names: { ...NORM_AFTER_ATTENTION, 'mlp.router': 'ffn_gate_inp' },
    experts: { router: 'mlp.router' },
    rules: [
      { modelName: 'self_attn.sinks', fileNames: ['attn_sinks.weight'] },
      {
        modelName: 'mlp.experts.gate_up_proj',
        layout: GATE_UP_COLUMNS,
        fileNames: ['ffn_gate_exps.weight', 'ffn_up_exps.weight'],
      },
      {
        modelName: 'mlp.experts.gate_up_proj_bias',
        layout: GATE_UP_BIAS,
        fileNames: ['ffn_gate_exps.bias', 'ffn_up_exps.bias'],
      },
      {
        modelName: 'mlp.experts.down_proj',
        layout: TRANSPOSED,
        fileNames: ['ffn_down_exps.weight'],
      },
      { modelName: 'mlp.experts.down_proj_bias', fileNames: ['ffn_down_exps.bias'] },
    ],
    window: { fullEvery: 2 },
  },
  {
    name: 'minimax-m2',
    modelTypes: ['minimax_m2'],
    className: 'MiniMaxM2ForCausalLM',
    mixture: {
      modelType: 'minimax_m2',
      className: 'MiniMaxM2ForCausalLM',
      isSigmoid: true,
      experts: 'num_local_experts',
      choiceBias: 'block_sparse_moe.e_score_correction_bias',
    },
    experts: MIXTRAL,
  },
  {
    name: 'ernie4_5-moe',
    modelTypes: ['ernie4_5_moe'],
    className: 'Ernie4_5_MoeForCausalLM',
    lacksBiases: true,
    mixture: {
      modelType: 'ernie4_5_moe',
      className: 'Ernie4_5_MoeForCausalLM',
      mayLead: true,
      hasStep: true,
      experts: 'moe_num_experts',
      width: 'moe_intermediate_size',
      shared: 'ungated',
      choiceBias: 'mlp.moe_statics.e_score_correction_bias',
    },
    names: createSharedExpertNames('shared_experts'),
    keys: {
      num_experts_per_tok: 'moe_k',
      n_shared_experts: 'moe_num_shared_experts',
      first_k_dense_replace: 'moe_layer_start_index',
    },
  },
];

// The supported architectures of GGUF files, and llama.cpp's names of their tensors. Source:
// llama.cpp's conversion script and its list of tensor names.
import type { ExpertNames, GgufArchitecture } from './architecture.js';

const EXPERTS: ExpertNames = {
  router: 'mlp.gate',
  gate: 'mlp.experts.*.gate_proj',
  up: 'mlp.experts.*.up_proj',
  down: 'mlp.experts.*.down_proj',
};

const MIXTRAL: ExpertNames = {
  router: 'block_sparse_moe.gate',
  gate: 'block_sparse_moe.experts.*.w1',
  up: 'block_sparse_moe.experts.*.w3',
  down: 'block_sparse_moe.experts.*.w2',
};

/** Tensors outside of blocks: Hugging Face's name and llama.cpp's. */
const OUTSIDE: Readonly<Record<string, string>> = {
  'model.embed_tokens': 'token_embd',
  'model.norm': 'output_norm',
  lm_head: 'output',
};

/** Tensors of a block. */
const BLOCK: Readonly<Record<string, string>> = {
  input_layernorm: 'attn_norm',
  'self_attn.q_proj': 'attn_q',
  'self_attn.k_proj': 'attn_k',
  'self_attn.v_proj': 'attn_v',
  'self_attn.o_proj': 'attn_output',
  'self_attn.q_norm': 'attn_q_norm',
  'self_attn.k_norm': 'attn_k_norm',
  'self_attn.qkv_proj': 'attn_qkv',
  post_attention_layernorm: 'ffn_norm',
  'mlp.gate_proj': 'ffn_gate',
  'mlp.up_proj': 'ffn_up',
  'mlp.down_proj': 'ffn_down',
};

/** Norms behind the branches, of Gemma 2, Gemma 3 and OLMo 2. */
const AFTER = {
  post_attention_layernorm: 'post_attention_norm',
  pre_feedforward_layernorm: 'ffn_norm',
  post_feedforward_layernorm: 'post_ffw_norm',
};

/** A norm behind attention under the name of one before the feed-forward block. */
const SECOND = { post_attention_layernorm: 'post_attention_norm' };

/** Names of the shared expert. */
const sharedExpert = (name: string) =>
  Object.fromEntries(
    ['gate', 'up', 'down'].map((part) => [`mlp.${name}.${part}_proj`, `ffn_${part}_shexp`]),
  );

/** Names of feed-forward blocks without gates. */
const plainFeed = (first: string, second: string) => ({
  [`mlp.${first}`]: 'ffn_up',
  [`mlp.${second}`]: 'ffn_down',
});

/** Names of feed-forward blocks of GPT-NeoX, BLOOM and Falcon. */
const WIDE_FEED = plainFeed('dense_h_to_4h', 'dense_4h_to_h');

const GRANITE = {
  embedding_multiplier: 'embedding_scale',
  residual_multiplier: 'residual_scale',
  attention_multiplier: 'attention.scale',
  logits_scaling: 'logit_scale',
};

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

const GEMMA = {
  hasOffsetNorms: true,
  fixed: { hidden_activation: 'gelu_pytorch_tanh', tie_word_embeddings: true },
} as const;

/** All supported architectures. */
export const ARCHITECTURES: readonly GgufArchitecture[] = [
  {
    ...{ name: 'llama', modelTypes: ['llama', 'mistral', 'mixtral'], isPaired: true },
    className: 'LlamaForCausalLM',
    mixture: {
      ...{ modelType: 'mixtral', className: 'MixtralForCausalLM' },
      experts: 'num_local_experts',
    },
    experts: MIXTRAL,
  },
  {
    ...{ name: 'qwen2', modelTypes: ['qwen2'], className: 'Qwen2ForCausalLM' },
    fixed: { use_sliding_window: false },
  },
  {
    ...{ name: 'qwen3', modelTypes: ['qwen3'], className: 'Qwen3ForCausalLM' },
    fixed: { use_sliding_window: false },
  },
  {
    ...{ name: 'qwen3moe', modelTypes: ['qwen3_moe'], className: 'Qwen3MoeForCausalLM' },
    mixture: {
      ...{ modelType: 'qwen3_moe', className: 'Qwen3MoeForCausalLM' },
      width: 'moe_intermediate_size',
    },
    fixed: { norm_topk_prob: true },
  },
  { name: 'gemma', modelTypes: ['gemma'], className: 'GemmaForCausalLM', ...GEMMA },
  {
    ...{ name: 'gemma2', modelTypes: ['gemma2'], className: 'Gemma2ForCausalLM', ...GEMMA },
    names: AFTER,
    numbers: {
      attn_logit_softcapping: 'attn_logit_softcapping',
      final_logit_softcapping: 'final_logit_softcapping',
    },
    window: { fullEvery: 2 },
  },
  {
    ...{ name: 'gemma3', modelTypes: ['gemma3_text'], className: 'Gemma3ForCausalLM', ...GEMMA },
    ...{ names: AFTER, window: { fullEvery: 6 } },
  },
  {
    ...{ name: 'phi3', modelTypes: ['phi3'], className: 'Phi3ForCausalLM', window: 'all' },
    names: { 'mlp.gate_up_proj': 'ffn_up' },
  },
  {
    ...{ name: 'smollm3', modelTypes: ['smollm3'], className: 'SmolLM3ForCausalLM' },
    isPaired: true,
  },
  { name: 'olmo2', modelTypes: ['olmo2'], className: 'Olmo2ForCausalLM', names: AFTER },
  {
    ...{ name: 'granite', modelTypes: ['granite'], className: 'GraniteForCausalLM' },
    isPaired: true,
    numbers: GRANITE,
  },
  {
    ...{ name: 'stablelm', modelTypes: ['stablelm'], className: 'StableLmForCausalLM' },
    ...{ epsilon: 'layer_norm_eps', biasKey: 'use_qkv_bias', parallelBy: 'norm' },
  },
  {
    ...{ name: 'phi2', modelTypes: ['phi'], className: 'PhiForCausalLM' },
    ...{ epsilon: 'layer_norm_eps', outside: { 'model.final_layernorm': 'output_norm' } },
    names: { 'self_attn.dense': 'attn_output', ...plainFeed('fc1', 'fc2') },
  },
  {
    ...{ name: 'starcoder2', modelTypes: ['starcoder2'], className: 'Starcoder2ForCausalLM' },
    ...{ epsilon: 'norm_epsilon', biasKey: 'use_bias', names: plainFeed('c_fc', 'c_proj') },
    fixed: { sliding_window: null },
  },
  {
    ...{ name: 'command-r', modelTypes: ['cohere'], className: 'CohereForCausalLM' },
    lacksBiases: true,
    ...{ epsilon: 'layer_norm_eps', numbers: { logit_scale: 'logit_scale' } },
  },
  {
    ...{ name: 'cohere2', modelTypes: ['cohere2'], className: 'Cohere2ForCausalLM' },
    lacksBiases: true,
    ...{ epsilon: 'layer_norm_eps', numbers: { logit_scale: 'logit_scale' } },
    window: { fullEvery: 4 },
  },
  {
    ...{ name: 'glm4', modelTypes: ['glm4'], className: 'Glm4ForCausalLM' },
    names: {
      post_self_attn_layernorm: 'post_attention_norm',
      post_mlp_layernorm: 'post_ffw_norm',
      'mlp.gate_up_proj': 'ffn_up',
    },
  },
  {
    ...{ name: 'ernie4_5', modelTypes: ['ernie4_5'], className: 'Ernie4_5ForCausalLM' },
    ...{ biasKey: 'use_bias', lacksBiases: true },
  },
  {
    ...{ name: 'exaone4', modelTypes: ['exaone4'], className: 'Exaone4ForCausalLM' },
    names: {
      post_attention_layernorm: 'post_attention_norm',
      post_feedforward_layernorm: 'post_ffw_norm',
    },
    fixed: { sliding_window: null },
  },
  {
    ...{ name: 'arcee', modelTypes: ['arcee'], className: 'ArceeForCausalLM', isPaired: true },
    lacksBiases: true,
  },
  {
    ...{ name: 'nemotron', modelTypes: ['nemotron'], className: 'NemotronForCausalLM' },
    ...{ epsilon: 'norm_eps', hasOffsetNorms: true },
  },
  {
    ...{ name: 'seed_oss', modelTypes: ['seed_oss'], className: 'SeedOssForCausalLM' },
    ...{ names: SECOND, lacksBiases: 'feed' },
  },
  {
    ...{ name: 'olmo', modelTypes: ['olmo'], className: 'OlmoForCausalLM', isPaired: true },
    ...{ epsilon: 'layer_norm_eps', fixed: { layer_norm_eps: 1e-5 } },
    lacksBiases: true,
  },
  {
    ...{ name: 'gptneox', modelTypes: ['gpt_neox'], className: 'GPTNeoXForCausalLM' },
    ...{ epsilon: 'layer_norm_eps', parallelBy: 'key', hasRopeSection: true },
    outside: {
      ...{ 'gpt_neox.embed_in': 'token_embd', 'gpt_neox.final_layer_norm': 'output_norm' },
      embed_out: 'output',
    },
    blocks: 'gpt_neox.layers',
    joined: { name: 'attention.query_key_value', isSplit: false },
    names: { 'attention.dense': 'attn_output', ...WIDE_FEED },
  },
  {
    ...{ name: 'bloom', modelTypes: ['bloom'], className: 'BloomForCausalLM', lacksRope: true },
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
      ...{ num_hidden_layers: 'n_layer', num_attention_heads: 'n_head' },
      max_position_embeddings: 'seq_length',
    },
  },
  {
    ...{ name: 'falcon', modelTypes: ['falcon'], className: 'FalconForCausalLM' },
    ...{ epsilon: 'layer_norm_epsilon', biasKey: 'bias', lacksBiases: true },
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
        ...{ new_decoder_architecture: norms === 2 || kvHeads > 1, multi_query: kvHeads === 1 },
        ...{ num_ln_in_parallel_attn: norms, parallel_attn: true, alibi: false },
      };
    },
  },
  {
    ...{ name: 'starcoder', modelTypes: ['gpt_bigcode'], className: 'GPTBigCodeForCausalLM' },
    ...{ epsilon: 'layer_norm_epsilon', lacksRope: true },
    outside: {
      ...{ 'transformer.wte': 'token_embd', 'transformer.wpe': 'position_embd' },
      'transformer.ln_f': 'output_norm',
    },
    blocks: 'transformer.h',
    names: {
      ...{ ln_1: 'attn_norm', 'attn.c_attn': 'attn_qkv', 'attn.c_proj': 'attn_output' },
      ...{ ln_2: 'ffn_norm', ...plainFeed('c_fc', 'c_proj') },
    },
    keys: {
      ...{ num_hidden_layers: 'n_layer', num_attention_heads: 'n_head', hidden_size: 'n_embd' },
      ...{ intermediate_size: 'n_inner', max_position_embeddings: 'n_positions' },
    },
  },
  {
    // Its files have the tensors and the computation of Llama.
    ...{ name: 'internlm2', modelTypes: ['internlm2'], className: 'InternLM2ForCausalLM' },
    ...{ isPaired: true, lacksBiases: true, readAs: 'llama' },
    outside: { 'model.tok_embeddings': 'token_embd', output: 'output' },
    joined: { name: 'attention.wqkv', isSplit: true },
    names: {
      ...{ attention_norm: 'attn_norm', 'attention.wo': 'attn_output', ffn_norm: 'ffn_norm' },
      ...{ 'feed_forward.w1': 'ffn_gate', 'feed_forward.w3': 'ffn_up' },
      'feed_forward.w2': 'ffn_down',
    },
  },
  {
    ...{ name: 'qwen2moe', modelTypes: ['qwen2_moe'], className: 'Qwen2MoeForCausalLM' },
    mixture: {
      ...{ modelType: 'qwen2_moe', className: 'Qwen2MoeForCausalLM', shared: 'gated' },
      ...{ width: 'moe_intermediate_size', normalizes: false },
    },
    names: { ...sharedExpert('shared_expert'), 'mlp.shared_expert_gate': 'ffn_gate_inp_shexp' },
    numbers: { shared_expert_intermediate_size: 'expert_shared_feed_forward_length' },
    fixed: { norm_topk_prob: false, use_sliding_window: false },
  },
  {
    ...{ name: 'olmoe', modelTypes: ['olmoe'], className: 'OlmoeForCausalLM' },
    lacksSharedKeys: true,
    mixture: { modelType: 'olmoe', className: 'OlmoeForCausalLM', normalizes: false },
    fixed: { norm_topk_prob: false },
  },
  {
    ...{ name: 'granitemoe', modelTypes: ['granitemoe'], className: 'GraniteMoeForCausalLM' },
    isPaired: true,
    mixture: {
      ...{ modelType: 'granitemoe', className: 'GraniteMoeForCausalLM' },
      experts: 'num_local_experts',
    },
    experts: {
      router: 'block_sparse_moe.router.layer',
      gateUp: 'block_sparse_moe.input_linear',
      down: 'block_sparse_moe.output_linear',
    },
    numbers: GRANITE,
  },
  {
    ...{ name: 'dots1', modelTypes: ['dots1'], className: 'Dots1ForCausalLM' },
    ...{ names: sharedExpert('shared_experts'), lacksSharedKeys: true },
    mixture: { modelType: 'dots1', className: 'Dots1ForCausalLM', ...SIGMOID },
    fixed: { use_sliding_window: false },
  },
  {
    ...{ name: 'glm4moe', modelTypes: ['glm4_moe'], className: 'Glm4MoeForCausalLM' },
    mixture: { modelType: 'glm4_moe', className: 'Glm4MoeForCausalLM', ...SIGMOID },
    names: { ...sharedExpert('shared_experts'), ...SECOND },
    more: ({ has }) => ({ use_qk_norm: has('blk.0.attn_q_norm.weight') }),
  },
  {
    ...{ name: 'minimax-m2', modelTypes: ['minimax_m2'], className: 'MiniMaxM2ForCausalLM' },
    mixture: {
      ...{ modelType: 'minimax_m2', className: 'MiniMaxM2ForCausalLM', isSigmoid: true },
      ...{ experts: 'num_local_experts' },
      choiceBias: 'block_sparse_moe.e_score_correction_bias',
    },
    experts: MIXTRAL,
  },
  {
    ...{ name: 'exaone', modelTypes: ['exaone'], className: 'ExaoneForCausalLM' },
    outside: { 'transformer.wte': 'token_embd', 'transformer.ln_f': 'output_norm' },
    blocks: 'transformer.h',
    names: {
      ...{ ln_1: 'attn_norm', ln_2: 'ffn_norm', 'attn.attention.out_proj': 'attn_output' },
      ...{ 'attn.attention.q_proj': 'attn_q', 'attn.attention.k_proj': 'attn_k' },
      ...{ 'attn.attention.v_proj': 'attn_v', 'mlp.c_fc_0': 'ffn_gate' },
      ...{ 'mlp.c_fc_1': 'ffn_up', 'mlp.c_proj': 'ffn_down' },
    },
    keys: { num_hidden_layers: 'num_layers', rms_norm_eps: 'layer_norm_epsilon' },
  },
  {
    ...{ name: 'hunyuan-dense', modelTypes: ['hunyuan_v1_dense'] },
    ...{ className: 'HunYuanDenseV1ForCausalLM', lacksBiases: true },
    names: {
      ...{ 'self_attn.query_layernorm': 'attn_q_norm', 'self_attn.key_layernorm': 'attn_k_norm' },
    },
  },
  {
    ...{ name: 'ernie4_5-moe', modelTypes: ['ernie4_5_moe'] },
    ...{ className: 'Ernie4_5_MoeForCausalLM', lacksBiases: true },
    mixture: {
      ...{ modelType: 'ernie4_5_moe', className: 'Ernie4_5_MoeForCausalLM', mayLead: true },
      ...{ experts: 'moe_num_experts', width: 'moe_intermediate_size', shared: 'ungated' },
      choiceBias: 'mlp.moe_statics.e_score_correction_bias',
    },
    names: sharedExpert('shared_experts'),
    keys: {
      ...{ num_experts_per_tok: 'moe_k', n_shared_experts: 'moe_num_shared_experts' },
      first_k_dense_replace: 'moe_layer_start_index',
    },
  },
];

/**
 * Returns llama.cpp's name, without suffix, of a tensor in a block; undefined for other tensors.
 */
export function blockName({ names, joined }: GgufArchitecture, theirs: string): string | undefined {
  if (theirs === joined?.name) return 'attn_qkv';
  return names?.[theirs] ?? BLOCK[theirs];
}

/** Returns Hugging Face's name of a tensor, without suffix; undefined for unknown tensors. */
export function modelName(architecture: GgufArchitecture, stored: string): string | undefined {
  const { names = {}, blocks = BLOCKS, joined } = architecture;
  const outside = Object.entries({ ...OUTSIDE, ...architecture.outside });
  // The family's own name comes last.
  const named = outside.filter(([, name]) => name === stored).at(-1);
  if (named) return named[0];
  const [, layer, rest] = /^blk\.(\d+)\.(.+)$/.exec(stored) ?? [];
  if (layer === undefined) return undefined;
  const first = joined && rest === 'attn_qkv' ? [[joined.name, rest] as const] : [];
  const all = [...first, ...Object.entries(names), ...Object.entries(BLOCK)];
  const found = all.find(([own, name]) => name === rest && blockName(architecture, own) === name);
  return found && `${blocks}.${layer}.${found[0]}`;
}

const BLOCKS = 'model.layers';

/** Returns the number of the block of a tensor with Hugging Face's name, and the rest of it. */
export function placeOf(
  { blocks = BLOCKS }: GgufArchitecture,
  own: string,
): { layer: string; rest: string } | null {
  if (!own.startsWith(`${blocks}.`)) return null;
  const [, layer, rest] = /^(\d+)\.(.+)$/.exec(own.slice(blocks.length + 1)) ?? [];
  return layer !== undefined && rest !== undefined ? { layer, rest } : null;
}

/** Returns llama.cpp's name of a tensor, without suffix; undefined for unknown tensors. */
export function storedName(architecture: GgufArchitecture, own: string): string | undefined {
  const place = placeOf(architecture, own);
  if (!place) return architecture.outside?.[own] ?? OUTSIDE[own];
  const name = architecture.namesIf?.names[place.rest] ?? blockName(architecture, place.rest);
  return name && `blk.${place.layer}.${name}`;
}

/** Returns the names of experts in Hugging Face's files. */
export const expertNames = ({ experts = EXPERTS }: GgufArchitecture): ExpertNames => experts;

/** Returns the architecture as which a file is read. */
export function readerOf(
  given: GgufArchitecture,
  has: (tensor: string) => boolean,
): GgufArchitecture {
  const architecture = ARCHITECTURES.find(({ name }) => name === given.readAs) ?? given;
  const { namesIf, names } = architecture;
  if (!namesIf || !has(namesIf.tensor)) return architecture;
  return { ...architecture, names: { ...names, ...namesIf.names } };
}

/** Names in GGUF files of the stacked matrices of experts, and of the router. */
export const STACKS = {
  router: 'ffn_gate_inp',
  gate: 'ffn_gate_exps',
  up: 'ffn_up_exps',
  down: 'ffn_down_exps',
} as const;

/** llama.cpp's name of the router's bias for the choice. */
export const CHOICE_BIAS = 'exp_probs_b';

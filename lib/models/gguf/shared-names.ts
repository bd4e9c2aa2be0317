// Lists names of tensors and factors that several architectures of GGUF files share. Source:
// llama.cpp's conversion script and its list of tensor names.
import type { ExpertNames } from './architecture.js';

export const EXPERTS: ExpertNames = {
  router: 'mlp.gate',
  gate: 'mlp.experts.*.gate_proj',
  up: 'mlp.experts.*.up_proj',
  down: 'mlp.experts.*.down_proj',
};

export const MIXTRAL: ExpertNames = {
  router: 'block_sparse_moe.gate',
  gate: 'block_sparse_moe.experts.*.w1',
  up: 'block_sparse_moe.experts.*.w3',
  down: 'block_sparse_moe.experts.*.w2',
};

/** Tensors outside of blocks: Hugging Face's name and llama.cpp's. */
export const OUTSIDE_NAMES: Readonly<Record<string, string>> = {
  'model.embed_tokens': 'token_embd',
  'model.norm': 'output_norm',
  lm_head: 'output',
};

/** Tensors of a block. */
export const BLOCK_NAMES: Readonly<Record<string, string>> = {
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
export const NORMS_AFTER_BRANCHES = {
  post_attention_layernorm: 'post_attention_norm',
  pre_feedforward_layernorm: 'ffn_norm',
  post_feedforward_layernorm: 'post_ffw_norm',
};

/** A norm behind attention under the name of one before the feed-forward block. */
export const NORM_AFTER_ATTENTION = { post_attention_layernorm: 'post_attention_norm' };

/** Names of the shared expert. */
export const createSharedExpertNames = (name: string) =>
  Object.fromEntries(
    ['gate', 'up', 'down'].map((part) => [`mlp.${name}.${part}_proj`, `ffn_${part}_shexp`]),
  );

/** Names of feed-forward blocks without gates. */
export const createFeedNames = (first: string, second: string) => ({
  [`mlp.${first}`]: 'ffn_up',
  [`mlp.${second}`]: 'ffn_down',
});

/** Names of feed-forward blocks of GPT-NeoX, BLOOM and Falcon. */
export const WIDE_FEED = createFeedNames('dense_h_to_4h', 'dense_4h_to_h');

export const GRANITE_NUMBERS = {
  embedding_multiplier: 'embedding_scale',
  residual_multiplier: 'residual_scale',
  attention_multiplier: 'attention.scale',
  logits_scaling: 'logit_scale',
};

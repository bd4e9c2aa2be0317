// The supported architectures of GGUF files, and llama.cpp's names of their tensors. Source:
// llama.cpp's conversion script and its list of tensor names.

/** The differences of an architecture from the common names and keys. */
export interface GgufArchitecture {
  /** The value of general.architecture. */
  readonly name: string;
  /** Values of model_type in config.json. A read file gets the first; all can be written. */
  readonly modelTypes: readonly [string, ...string[]];
  /** The class in config.json. */
  readonly className: string;
  /** The model_type and class of files with experts. Default: experts are refused. */
  readonly mixture?: { readonly modelType: string; readonly className: string };
  /** Whether rows of queries and keys are stored in pairs. Default false. */
  readonly isPaired?: boolean;
  /** Whether norms are stored as 1 + weight. Default false. */
  readonly hasOffsetNorms?: boolean;
  /** config.json's key of the epsilon of norms with a mean. Default: RMS norms. */
  readonly epsilon?: string;
  /** config.json's key of all biases. Default: attention_bias and mlp_bias. */
  readonly biasKey?: string;
  /** Whether llama.cpp ignores biases, so models with them are refused. Default false. */
  readonly lacksBiases?: boolean;
  /** Whether blocks may be parallel; use_parallel_residual decides. Default false. */
  readonly mayBeParallel?: boolean;
  /** Names of tensors outside of blocks that differ from the common ones. */
  readonly outside?: Readonly<Record<string, string>>;
  /** Names of a block's tensors that differ from the common ones. */
  readonly names?: Readonly<Record<string, string>>;
  /** Names of experts in Hugging Face's files. Default EXPERTS. */
  readonly experts?: ExpertNames;
  /** Keys of config.json and of the metadata (without the architecture's name), both required. */
  readonly numbers?: Readonly<Record<string, string>>;
  /** Entries of config.json that no key decides. */
  readonly fixed?: Readonly<Record<string, boolean | string | null>>;
  /** Layers with a window: all, or all except each `fullEvery`th. Default: no window. */
  readonly window?: 'all' | { readonly fullEvery: number };
}

/** Names of the router and of an expert's matrices in Hugging Face's files. */
export interface ExpertNames {
  readonly router: string;
  readonly gate: string;
  readonly up: string;
  readonly down: string;
}

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

/** Names of feed-forward blocks without gates. */
const plainFeed = (first: string, second: string) => ({
  [`mlp.${first}`]: 'ffn_up',
  [`mlp.${second}`]: 'ffn_down',
});

const GEMMA = {
  hasOffsetNorms: true,
  fixed: { hidden_activation: 'gelu_pytorch_tanh', tie_word_embeddings: true },
} as const;

/** All supported architectures. */
export const ARCHITECTURES: readonly GgufArchitecture[] = [
  {
    ...{ name: 'llama', modelTypes: ['llama', 'mistral', 'mixtral'], isPaired: true },
    className: 'LlamaForCausalLM',
    mixture: { modelType: 'mixtral', className: 'MixtralForCausalLM' },
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
    mixture: { modelType: 'qwen3_moe', className: 'Qwen3MoeForCausalLM' },
    numbers: { moe_intermediate_size: 'expert_feed_forward_length' },
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
    numbers: {
      embedding_multiplier: 'embedding_scale',
      residual_multiplier: 'residual_scale',
      attention_multiplier: 'attention.scale',
      logits_scaling: 'logit_scale',
    },
  },
  {
    ...{ name: 'stablelm', modelTypes: ['stablelm'], className: 'StableLmForCausalLM' },
    ...{ epsilon: 'layer_norm_eps', biasKey: 'use_qkv_bias', mayBeParallel: true },
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
];

/**
 * Returns llama.cpp's name, without suffix, of a tensor in a block; undefined for other tensors.
 */
export function blockName({ names }: GgufArchitecture, theirs: string): string | undefined {
  return names?.[theirs] ?? BLOCK[theirs];
}

/** Returns Hugging Face's name of a tensor, without suffix; undefined for unknown tensors. */
export function modelName(architecture: GgufArchitecture, stored: string): string | undefined {
  const outside = Object.entries({ ...OUTSIDE, ...architecture.outside });
  // The family's own name comes last.
  const named = outside.filter(([, name]) => name === stored).at(-1);
  if (named) return named[0];
  const [, layer, rest] = /^blk\.(\d+)\.(.+)$/.exec(stored) ?? [];
  if (layer === undefined) return undefined;
  const all = [...Object.entries(architecture.names ?? {}), ...Object.entries(BLOCK)];
  const found = all.find(([own, name]) => name === rest && blockName(architecture, own) === name);
  return found && `model.layers.${layer}.${found[0]}`;
}

/** Returns llama.cpp's name of a tensor, without suffix; undefined for unknown tensors. */
export function storedName(architecture: GgufArchitecture, own: string): string | undefined {
  const [, layer, rest = ''] = /^model\.layers\.(\d+)\.(.+)$/.exec(own) ?? [];
  if (layer === undefined) return architecture.outside?.[own] ?? OUTSIDE[own];
  const name = blockName(architecture, rest);
  return name && `blk.${layer}.${name}`;
}

/** Returns the names of experts in Hugging Face's files. */
export const expertNames = ({ experts = EXPERTS }: GgufArchitecture): ExpertNames => experts;

/** Names in GGUF files of the stacked matrices of experts, and of the router. */
export const STACKS = {
  router: 'ffn_gate_inp',
  gate: 'ffn_gate_exps',
  up: 'ffn_up_exps',
  down: 'ffn_down_exps',
} as const satisfies Record<keyof ExpertNames, string>;

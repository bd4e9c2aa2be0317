// Families of transformers without a class here: the first missing feature of each, and the nearest
// families that load.

const ENCODER = 'an encoder: attention to later tokens, and no causal language model';
const PICTURES = 'an image encoder';
const STATE = 'state space layers of another kind';

/** A feature that nn.models lacks, and values of model_type of the nearest families. */
type Missing = readonly [feature: string, ...near: string[]];

/** By model_type. */
const MISSING: Readonly<Record<string, Missing>> = {
  afm7: ['layers that read keys and values of earlier ones, under other names', 'gemma4_text'],
  albert: [ENCODER, 'bert', 'modernbert'],
  aya_vision: ['logits without the scale of its text model', 'cohere2'],
  baichuan_m1: ['short convolutions of keys and values', 'baichuan'],
  bailing_moe_linear: ['linear attention layers', 'bailing_moe', 'qwen3_next'],
  bart: ['an encoder and a decoder with cross-attention'],
  bitnet: ['weights of three values', 'llama'],
  clip: [PICTURES],
  dbrx: ['experts and projections under other names', 'mixtral'],
  falcon_mamba: [STATE, 'falcon'],
  hunyuan: ['layers that share keys and values, with experts', 'hunyuan_v1_moe'],
  iquestloopcoder: ['blocks that run several times', 'llama'],
  jamba: [STATE, 'granitemoehybrid', 'qwen3_next'],
  kimi_linear: ['Kimi delta attention layers', 'kimi_k2', 'qwen3_next'],
  laguna: ['a router with scores of another kind', 'qwen3_moe'],
  longcat_flash: ['two attention blocks in a layer', 'deepseek_v3'],
  longcat_flash_ngram: ['two attention blocks in a layer', 'deepseek_v3'],
  mamba: [STATE, 'qwen3_next'],
  mimo_v2_flash: ['values of another width than keys', 'mimo'],
  minimax: ['lightning attention layers', 'minimax_m2'],
  'nemotron-nas': ['layers with different blocks', 'llama', 'nemotron'],
  openelm: ['layers with different sizes', 'llama'],
  phi3small: ['block-sparse attention', 'phi3', 'phimoe'],
  pixtral: [PICTURES, 'mistral'],
  plamo2: [STATE, 'qwen3_next'],
  recurrent_gemma: ['recurrent layers', 'gemma2'],
  rwkv7: ['recurrent layers', 'qwen3_next'],
  step3p5: ['layers with different numbers of heads', 'qwen3_moe'],
  t5: ['an encoder and a decoder with cross-attention'],
  vit: [PICTURES],
  whisper: ['an audio encoder, and a decoder with cross-attention'],
};

/** Returns what a family misses, or null for an unknown model_type. */
export const findMissing = (type: unknown): { feature: string; near: string[] } | null => {
  const entry = typeof type === 'string' && Object.hasOwn(MISSING, type) ? MISSING[type] : null;
  if (!entry) return null;
  const [feature, ...near] = entry;
  return { feature, near };
};

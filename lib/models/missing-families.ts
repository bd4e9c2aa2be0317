// Families of transformers without a class here, and the first missing feature of each.
import { required } from '../runtime/required.js';

const ENCODER = 'an encoder: attention to later tokens, and no causal language model';
const PICTURES = 'an image encoder';
const STATE = 'state space layers';

/** Features that nn.models lacks, by model_type. */
const MISSING: Readonly<Record<string, string>> = {
  albert: ENCODER,
  aya_vision: 'logits without the scale of its text model',
  baichuan_m1: 'short convolutions of keys and values',
  bailing_moe_linear: 'linear attention layers',
  bamba: STATE,
  bart: 'an encoder and a decoder with cross-attention',
  bitnet: 'weights of three values',
  clip: PICTURES,
  dbrx: 'experts and projections under other names',
  deepseek_v32: 'sparse attention with an indexer',
  falcon_h1: STATE,
  falcon_mamba: STATE,
  gemma3n: 'embeddings and gates that differ by layer',
  hunyuan: 'layers that share keys and values, with experts',
  jamba: STATE,
  kimi_linear: 'Kimi delta attention layers',
  llama4: 'a router with sigmoid scores, and layers with chunked attention',
  llama4_text: 'a router with sigmoid scores, and layers with chunked attention',
  longcat_flash: 'two attention blocks in a layer',
  mamba2: STATE,
  mamba: STATE,
  mimo_v2_flash: 'values of another width than keys',
  minimax: 'lightning attention layers',
  'nemotron-nas': 'layers with different blocks',
  nemotron_h: STATE,
  openelm: 'layers with different sizes',
  phi3small: 'block-sparse attention',
  phimoe: 'a router with sparse mixer scores',
  pixtral: PICTURES,
  plamo2: STATE,
  recurrent_gemma: 'recurrent layers',
  rwkv7: 'recurrent layers',
  t5: 'an encoder and a decoder with cross-attention',
  vit: PICTURES,
  whisper: 'an audio encoder, and a decoder with cross-attention',
};

/** Returns the missing part of a family, or null for an unknown model_type. */
export const findMissingPart = (type: unknown): string | null =>
  typeof type === 'string' && Object.hasOwn(MISSING, type) ? required(MISSING[type]) : null;

// Describes Baichuan in GGUF files: llama.cpp decides by the number of layers if scores have linear
// biases. Source: llama.cpp's conversion script and its graph of Baichuan.
import type { JsonObject } from '../../../types/json.js';
import type { GgufArchitecture } from './architecture.js';
import type { GgufKeys } from './keys.js';
import { PACKED_PAIRS } from './layouts.js';

/** The numbers of layers of 7B and 13B. */
const [ROTARY, BIASED] = [32, 40];

const EXPECTED = `${ROTARY} layers with rotary positions, or ${BIASED} with biased scores`;

const SHARED = {
  name: 'baichuan',
  modelTypes: ['baichuan'],
  className: 'BaichuanForCausalLM',
  lacksBiases: true,
  rules: [
    {
      modelName: 'self_attn.W_pack.weight',
      layout: PACKED_PAIRS,
      fileNames: ['attn_q.weight', 'attn_k.weight', 'attn_v.weight'],
    },
  ],
} as const;

const isBiased = (keys: GgufKeys): boolean => keys.size('block_count') === BIASED;

const describeWritable = (layers: number, hasBiases: boolean) => ({
  // Only models with rotary positions have this key.
  fits: (config: JsonObject): boolean =>
    config.num_hidden_layers === layers && hasBiases === !('max_position_embeddings' in config),
  expected: EXPECTED,
});

/** With biased scores, and with rotary positions. */
export const BAICHUAN: readonly GgufArchitecture[] = [
  {
    ...SHARED,
    matches: isBiased,
    writes: describeWritable(BIASED, true),
    lacksRope: true,
    keys: { max_position_embeddings: 'model_max_length' },
  },
  {
    ...SHARED,
    writes: describeWritable(ROTARY, false),
    more({ keys }) {
      const layers = keys.size('block_count');
      if (layers !== ROTARY) throw keys.keyError('block_count', EXPECTED, layers);
      return {};
    },
  },
];

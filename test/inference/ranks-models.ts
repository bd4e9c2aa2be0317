// Models for tests of inference on several ranks.
import { nn } from '../../lib/index.js';

const { GPT2, Llama, Phi3, Qwen2Moe, Qwen3, Qwen3Moe } = nn.models;

export const sizes = { vocabSize: 67, maxSeq: 64, layers: 2 };

/** Numbers of heads, channels and tokens that are not divisible by 2 or 4. */
export const models: Record<string, () => nn.models.CausalLM> = {
  'GPT-2 of 5 heads': () => new GPT2({ ...sizes, heads: 5, channels: 20 }),
  'Llama of 6 and 3 heads': () =>
    new Llama({ ...sizes, heads: 6, kvHeads: 3, channels: 24, hidden: 37 }),
  'Qwen3, tied': () =>
    new Qwen3({ ...sizes, heads: 8, kvHeads: 2, headDim: 6, channels: 16, hidden: 21, tied: true }),
  'Phi-3 of 8 and 4 heads': () =>
    new Phi3({ ...sizes, heads: 8, kvHeads: 4, headDim: 6, channels: 16, hidden: 21 }),
  'Phi-3, of whose heads a part is turned': () =>
    new Phi3({
      ...sizes,
      heads: 8,
      kvHeads: 4,
      headDim: 8,
      channels: 16,
      hidden: 21,
      partialRotaryFactor: 0.75,
    }),
  'Qwen2-MoE of 5 experts': () =>
    new Qwen2Moe({
      ...sizes,
      heads: 4,
      channels: 16,
      hidden: 20,
      moe: { experts: 5, perToken: 2, hidden: 10, sharedHidden: 12, normalize: false },
    }),
};

/** Inputs of each rank are whole groups of 8. */
export const packedPhi = (): nn.models.CausalLM =>
  new Phi3({ ...sizes, heads: 8, kvHeads: 4, headDim: 8, channels: 64, hidden: 96 });

/** Most of its weights belong to experts. */
export const mixture = (): nn.models.CausalLM =>
  new Qwen3Moe({
    ...sizes,
    heads: 4,
    kvHeads: 2,
    channels: 16,
    hidden: 20,
    moe: { experts: 6, perToken: 3, hidden: 24 },
  });

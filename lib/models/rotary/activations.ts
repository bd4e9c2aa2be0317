// What a block with rotary positions keeps of each token in training, by closed formulas.
import type { BlockActivations } from '../activation-shape.js';
import type { RotarySizes, RotaryTraits } from './config.js';
import type { MoeSizes } from './mixture.js';

/** What a feed-forward block keeps, and what its backward needs beside that, of each token. */
interface Feed {
  kept: number;
  statistics: number;
  backward: number;
}

/** Gate, up and their product (3 h); in the backward the gradients of the first two (2 h). */
const denseFeed = (hidden: number): Feed => ({
  ...{ kept: 3 * hidden, statistics: 0, backward: 2 * hidden },
});

/**
 * For k experts of a token, h wide: gate, up and their product of each (3 k h), and what they give
 * (k C), E logits; ids, weights, rows and places (16 k bytes). In the backward the gradients of
 * gate and up and of the sorted tokens (k (2 h + C)), and that of the token (C). A shared expert
 * has its own 3 h, and its result (C).
 */
function sparseFeed(moe: MoeSizes, channels: number): Feed {
  const { experts, perToken: k, hidden, sharedHidden } = moe;
  const shared = sharedHidden === null ? 0 : 3 * sharedHidden + channels;
  return {
    kept: k * (3 * hidden + channels) + experts + shared,
    statistics: 16 * k,
    backward: k * (2 * hidden + channels) + channels,
  };
}

/** Of one block; where some are dense and some are not, their mean, and the most of a backward. */
function feedOf({ hidden, channels, moe, layers }: RotarySizes): Feed {
  const dense = denseFeed(hidden);
  if (!moe) return dense;
  const sparse = sparseFeed(moe, channels);
  const share = moe.denseLayers.length / layers;
  const mean = (key: 'kept' | 'statistics'): number =>
    share * dense[key] + (1 - share) * sparse[key];
  return {
    kept: mean('kept'),
    statistics: mean('statistics'),
    backward: Math.max(share > 0 ? dense.backward : 0, share < 1 ? sparse.backward : 0),
  };
}

/**
 * For C channels, h inner ones, H heads of queries and K of keys, D wide: both streams and both
 * norms' results (4 C), the feed-forward block's, queries and the attention's result (2 H
 * D), keys and values (2 K D); where heads are normalised, queries and keys before it too. In the
 * backward of the MLP the gradients of gate and up are beside them (2 h), in that of attention
 * those of the stream, queries and keys (2 C + H D + K D). Statistics: a log-sum-exp for each head,
 * a deviation for each norm.
 */
export function rotaryBlockActivations(
  { qkNorm }: RotaryTraits,
  sizes: RotarySizes,
): BlockActivations {
  const { channels, heads, kvHeads, headDim } = sizes;
  const feed = feedOf(sizes);
  const turned = (heads + kvHeads) * headDim;
  const normed = qkNorm ? 1 : 0;
  const inAttention = 2 * channels + turned;
  return {
    kept: 4 * channels + feed.kept + (2 + normed) * turned,
    statistics: feed.statistics + 4 * heads + 8 + 4 * normed * (heads + kvHeads),
    backward: feed.backward,
    replayed: Math.max(feed.backward - channels, inAttention),
    stream: channels,
    selective: null,
  };
}

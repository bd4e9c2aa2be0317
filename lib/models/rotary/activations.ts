// Computes the training memory per token of a block with rotary positions, by closed formulas.

import { WIDEST_HEAD } from '../../nn/scored-attention.js';
import type { BlockActivations } from '../activation-shape.js';
import { type RotarySizes, toBody } from './config.js';
import type { DeltaSizes } from './delta-config.js';
import { convChannels, type MambaSizes } from './mamba-config.js';
import type { MoeSizes } from './mixture.js';
import type { RotaryTraits } from './traits.js';

/** Elements that a feed-forward block keeps per token, and the extra elements of its backward. */
interface FeedMemory {
  kept: number;
  statistics: number;
  backward: number;
}

/** Gate, up and their product (3 h); in the backward the gradients of the first two (2 h). */
const denseFeed = (hidden: number): FeedMemory => ({
  kept: 3 * hidden,
  statistics: 0,
  backward: 2 * hidden,
});

/**
 * The activation as an operation of its own keeps its result too (4 h); without a gate, the inner
 * values before and after it (2 h). A squared ReLU also keeps the values before the square (3 h).
 */
const computeFeed = ({ activation, feed }: RotaryTraits, hidden: number): FeedMemory => {
  const isPlain = typeof feed === 'object';
  const inner = activation?.kind === 'relu2' ? 3 : 2;
  if (isPlain) return { kept: inner * hidden, statistics: 0, backward: (inner - 1) * hidden };
  const isFused = (activation?.kind ?? 'silu') === 'silu';
  return isFused ? denseFeed(hidden) : { kept: 4 * hidden, statistics: 0, backward: 3 * hidden };
};

/**
 * For k experts per token of width h: gate, up and their product (3 k h), their outputs (k C), E
 * logits; ids, weights, rows and places (16 k bytes). The backward adds the gradients of gate and
 * up and of the sorted tokens (k (2 h + C)), and the gradient of the token (C). A shared expert
 * adds 3 h and its output (C). Experts of another width W have W in place of C, and keep the inputs
 * and outputs of all (2 W).
 */
function sparseFeed({ moe: traits }: RotaryTraits, moe: MoeSizes, channels: number): FeedMemory {
  const { experts, perToken: k, hidden, sharedHidden, latentDim } = moe;
  const width = latentDim ?? channels;
  const projected = latentDim === null ? 0 : 2 * latentDim;
  // Without a gate, the gradient of the inner values replaces a kept result.
  const inner = traits?.activation === 'relu2' ? 1 : 2;
  const shared = sharedHidden === null ? 0 : 3 * sharedHidden + channels;
  // Bounded experts are a chain of operations on sorted tokens.
  if (traits?.limit !== undefined) {
    return {
      kept: k * (10 * hidden + 2 * channels) + experts,
      statistics: 20 * k,
      backward: k * (4 * hidden + channels) + channels,
    };
  }
  return {
    kept: k * (3 * hidden + width) + experts + shared + projected,
    // A router by groups reads its tokens in f32.
    statistics: 16 * k + (traits?.scores ? 4 * channels : 0),
    backward: k * (inner * hidden + width) + channels,
  };
}

/**
 * Returns the memory of a block's feed-forward part. If dense and sparse blocks are mixed, returns
 * their mean, and the maximum of a backward.
 */
function blockFeed(
  traits: RotaryTraits,
  { hidden, channels, moe, layers }: RotarySizes,
): FeedMemory {
  const dense = computeFeed(traits, hidden);
  if (!moe) return dense;
  const sparse = sparseFeed(traits, moe, channels);
  // Both blocks, the norms around them, and the router's input.
  if (traits.moe?.beside) {
    return {
      kept: dense.kept + sparse.kept + 5 * channels + 2 * moe.perToken * moe.hidden,
      statistics: dense.statistics + sparse.statistics + 16,
      backward: Math.max(dense.backward, sparse.backward),
    };
  }
  const fraction = moe.denseLayers.length / layers;
  const mean = (key: 'kept' | 'statistics'): number =>
    fraction * dense[key] + (1 - fraction) * sparse[key];
  return {
    kept: mean('kept'),
    statistics: mean('statistics'),
    backward: Math.max(fraction > 0 ? dense.backward : 0, fraction < 1 ? sparse.backward : 0),
  };
}

/**
 * Elements that the attention or recurrence of a block keeps per token, and its peak in the
 * backward.
 */
interface MixerMemory {
  kept: number;
  statistics: number;
  backward: number;
}

/** The attention of a block; see rotaryBlockActivations(). */
function attentionMixer(traits: RotaryTraits, sizes: RotarySizes): MixerMemory {
  const { channels, heads, kvHeads, headDim, maxSeq, attentionDropout } = sizes;
  const { factors, isParallel, norms, traits: bodyTraits } = toBody(traits, sizes);
  const { qkNorm = 'none', gated = false } = bodyTraits;
  const { norm: { offset = false } = {} } = traits;
  const turned = (heads + kvHeads) * headDim;
  const normed = qkNorm === 'none' ? 0 : 1;
  const storesScores = headDim > WIDEST_HEAD || (factors.scoreCap !== null && attentionDropout > 0);
  const scores = storesScores ? 2 * heads * maxSeq : 0;
  const headStatistics = 4 * (qkNorm === 'whole' ? 2 : heads + kvHeads);
  const paired = traits.rope?.interleaved ? ((sizes.partialRotaryFactor ?? 1) < 1 ? 2 : 1) : 0;
  const steps = (isParallel ? 1 : 0) + (offset ? 6 : 0);
  // Norms by 1 + weight: of the heads, or after the branch. Their gradients are not there at once.
  const ofHeads = 5 * normed * turned;
  const ofBranch = norms.attention[1] === null ? 0 : 6 * channels;
  // The gates, their sigmoid, and its product with the result.
  const gates = gated ? 3 * heads * headDim : 0;
  return {
    kept: (2 + (offset ? 2 : 1) * normed) * turned + scores + gates,
    statistics: 4 * heads + normed * headStatistics,
    backward:
      (2 + steps) * channels +
      (1 + paired) * turned +
      (offset ? Math.max(ofHeads, ofBranch) : 0) +
      scores,
  };
}

/**
 * A gated delta net, for keys k and values v of all heads: the convolution's input and output (4 k
 * + 2 v), normalized queries and keys (2 k), gates, result, its norm and their product (4 v).
 * Statistics: five f32 numbers of each head for decays and steps, and a deviation for each norm.
 */
function deltaMixer(
  traits: RotaryTraits,
  { channels }: RotarySizes,
  delta: DeltaSizes,
): MixerMemory {
  const { keyHeads, heads, keyDim, valueDim } = delta;
  const [k, v] = [keyHeads * keyDim, heads * valueDim];
  const steps = traits.norm?.offset ? 6 : 0;
  return {
    kept: 6 * k + 6 * v,
    statistics: 24 * heads + 8 * keyHeads,
    backward: (2 + steps) * channels + 4 * k + 4 * v,
  };
}

/**
 * A gated short convolution: both gates, the values, their product, the convolution, and its
 * product with a gate. Backward: gradients of both halves of the convolution and of in_proj.
 */
const convMixer = ({ channels }: RotarySizes): MixerMemory => ({
  kept: 6 * channels,
  statistics: 0,
  backward: 7 * channels,
});

/**
 * A state space layer. It has i inner channels, and s channels of B and C together. It keeps the
 * projection (2 i + s), the convolution (i + s), the sum with D x, and the gated values and their
 * norm, if there is one (3 i); a norm of groups also keeps its result without the weight (i).
 * Backward: gradients of the projection and of the convolution. Statistics: three f32 numbers of
 * each head for decays and steps, and a deviation of the norm.
 */
function mambaMixer(
  { mamba: traits }: RotaryTraits,
  { channels }: RotarySizes,
  mamba: MambaSizes,
): MixerMemory {
  const inner = mamba.heads * mamba.headDim;
  const convolved = convChannels(mamba);
  const hasNorm = mamba.norm !== null;
  const hasGroups = hasNorm && traits?.normGroups === true && mamba.groups > 1;
  const normed = (hasNorm ? 1 : 0) + (hasGroups ? 1 : 0);
  return {
    kept: (3 + normed) * inner + 2 * convolved + mamba.heads,
    statistics: 12 * mamba.heads + 4,
    // The backward of the norm frees the result without the weight.
    backward: 2 * channels + (hasGroups ? 1 : 2) * inner + 2 * convolved,
  };
}

/** The layer in place of attention in some layers; null: none. */
function recurrentMixer(
  traits: RotaryTraits,
  sizes: RotarySizes,
): { layers: readonly boolean[]; memory: MixerMemory } | null {
  const { delta, conv, mamba } = sizes;
  if (delta) return { layers: delta.layers, memory: deltaMixer(traits, sizes, delta) };
  if (mamba) return { layers: mamba.layers, memory: mambaMixer(traits, sizes, mamba) };
  return conv ? { layers: conv.layers, memory: convMixer(sizes) } : null;
}

/**
 * Attention beside a state space layer: both, and an input of one of them with a multiplier. In the
 * backward, attention comes first and frees its part.
 */
function besideMixer(
  { channels }: RotarySizes,
  attention: MixerMemory,
  recurrence: MixerMemory,
): MixerMemory {
  return {
    kept: attention.kept + recurrence.kept + channels,
    statistics: attention.statistics + recurrence.statistics,
    backward: Math.max(attention.backward, recurrence.backward - attention.kept) + channels,
  };
}

/** Of one block; if both kinds are mixed, their mean, and the maximum of a backward. */
function blockMixer(traits: RotaryTraits, sizes: RotarySizes): MixerMemory {
  const attention = attentionMixer(traits, sizes);
  const found = recurrentMixer(traits, sizes);
  if (!found) return attention;
  const recurrence = found.memory;
  if (traits.mamba?.besideAttention) return besideMixer(sizes, attention, recurrence);
  const share = found.layers.filter((layer) => layer).length / sizes.layers;
  const mean = (key: 'kept' | 'statistics'): number =>
    share * recurrence[key] + (1 - share) * attention[key];
  return {
    kept: mean('kept'),
    statistics: mean('statistics'),
    backward: Math.max(share > 0 ? recurrence.backward : 0, share < 1 ? attention.backward : 0),
  };
}

/** Blocks with one branch each: the mean of the kept elements, and the largest backward. */
function oneBranchActivations(traits: RotaryTraits, sizes: RotarySizes): BlockActivations {
  const { channels, layers, mamba, moe, hidden, feedLayers = [] } = sizes;
  const dense = computeFeed(traits, hidden);
  const sparse = moe ? sparseFeed(traits, moe, channels) : dense;
  const feedAt = (layer: number): FeedMemory => (moe?.denseLayers.includes(layer) ? dense : sparse);
  const state = mamba ? mambaMixer(traits, sizes, mamba) : null;
  const branches = Array.from({ length: layers }, (_, layer) => {
    if (feedLayers[layer]) return feedAt(layer);
    return (mamba?.layers[layer] && state) || attentionMixer(traits, sizes);
  });
  const mean = (key: 'kept' | 'statistics'): number =>
    branches.reduce((sum, branch) => sum + branch[key], 0) / layers;
  const backward = Math.max(...branches.map((branch) => branch.backward));
  return {
    kept: 2 * channels + mean('kept'),
    statistics: mean('statistics') + 4,
    backward: Math.max(0, ...branches.filter((_, i) => feedLayers[i]).map((one) => one.backward)),
    replayed: backward,
    stream: channels,
    selective: null,
  };
}

/**
 * Returns the further memory of a block for n versions of the stream of C channels. The block keeps
 * the versions and their predictions (2 n C), which replace a plain stream (C). It also keeps:
 *
 *     6 C     inputs of both routers, of the further embedding, and of three norms
 *     5 C     first version before and after its scale, change, corrections
 *     r       the residual of rank r
 *     3 p     gate, its activation and the product, for a further embedding of width p
 *
 * Statistics: a deviation for each of four norms. Backward: gradients of all versions (2 n C). A
 * repeated forward also has its sums at once (8 n C).
 */
function versionMemory({
  channels: C,
  altUp,
  layerInputDim,
}: RotarySizes): FeedMemory & { replayed: number; stream: number } {
  if (!altUp) return { kept: 0, statistics: 0, backward: 0, replayed: 0, stream: C };
  const { inputs: n, laurelRank } = altUp;
  const width = layerInputDim ?? 0;
  return {
    kept: (2 * n + 10) * C + laurelRank + 3 * width + n ** 2,
    statistics: 16,
    backward: 2 * n * C,
    replayed: 8 * n * C,
    stream: n * C + 2 * width,
  };
}

/**
 * Elements per token of a block, for C channels, h inner ones, H query and K key heads of width D:
 *
 *     4 C                 both streams and both norms' results
 *     2 H D + 2 K D       queries, the attention's result, keys and values
 *     H D + K D           with head norms: queries and keys before the norm
 *     C                   for each norm above two
 *     C, or D of a head   for each norm by 1 + weight: its input is in f32
 *     kept by the feed-forward block
 *
 * Backward needs more: in the MLP the gradients of gate and up (2 h); in attention the gradients of
 * the stream, queries and keys (2 C + H D + K D). Pairs of neighbouring channels need the gradients
 * of queries and keys again; norms by 1 + weight have gradients in f32. Statistics: a log-sum-exp
 * per head, a deviation per norm.
 *
 * A parallel block keeps one norm's result and one stream (2 C less). Scores that scoredAttention()
 * stores, and their weights, keep 2 H T elements for T = maxSeq. Gated attention keeps the gates,
 * their sigmoid and the product (3 H D).
 */
export function rotaryBlockActivations(traits: RotaryTraits, sizes: RotarySizes): BlockActivations {
  if (traits.oneBranch) return oneBranchActivations(traits, sizes);
  const { channels } = sizes;
  const { norms, isParallel } = toBody(traits, sizes);
  const { norm: { kind = 'rms', offset = false } = {} } = traits;
  const feed = blockFeed(traits, sizes);
  const mixer = blockMixer(traits, sizes);
  const versions = versionMemory(sizes);
  const count = [...norms.attention, ...norms.mlp].filter((name) => name !== null).length;
  const more = Math.max(0, count - 2) + (offset ? count : 0) - (isParallel ? 2 : 0);
  return {
    kept: (4 + more) * channels + feed.kept + mixer.kept + versions.kept,
    statistics:
      feed.statistics + mixer.statistics + versions.statistics + (kind === 'rms' ? 4 : 8) * count,
    backward: feed.backward + versions.backward,
    replayed: Math.max(feed.backward - channels, mixer.backward) + versions.replayed,
    stream: versions.stream,
    selective: null,
  };
}

// Computes the device memory of GPT-2's activations in training, by closed formulas.
import { type DType, dtypeSize } from '../../runtime/dtype.js';
import type { BlockActivations } from '../activation-shape.js';
import type { GPT2Config } from './config.js';

/** Tensors that a block keeps between forward and backward. */
export type ActivationMode = 'none' | 'selective' | 'attention' | 'full' | 'segments' | 'cpu';

/** Bytes of the activations of GPT-2's blocks in training. */
export interface ActivationBytes {
  /** Bytes on the device after the blocks' forward. */
  held: number;
  /** Peak bytes in the backward of the blocks, including gradients of activations. */
  peak: number;
}

/**
 * Elements per token and channel that a block saves: s1, x, qkv (3), attention, s2, y, z (4), gelu
 * (4).
 */
const BLOCK = 16;
/** Saved elements without x, y and gelu. */
const SELECTIVE_BLOCK = 10;
/** Gradient of gelu (4) and of both branches of the stream: the MLP's backward. */
const BACKWARD = 6;

/**
 * Returns the bytes of the activations of the blocks for N = batch * seq tokens of C channels, e
 * bytes each, with H heads and L blocks in S segments of K = ceil(L / S).
 *
 *     b  = N (16 C e + 4 H + 16)   block: 16 above, the log-sum-exp of each head, two means and
 *                                  deviations in f32
 *     b' = N (10 C e + 4 H + 16)   block, selective
 *     c  = N C e                   residual stream
 *     a  = c + 4 N H               attention output
 *
 *                   held            peak
 *     none          L b             L b  + 6 c
 *     selective     L b'            L b' + 10 c     (recomputed gelu and its gradient)
 *     attention     L (c + a)       L (c + a) + b - a + 6 c
 *     full          L c             L c + b + 6 c   (the newest block's b includes its input)
 *     segments      S c             S c + K b + 6 c
 *     cpu           c               2 c + K b + 6 c (its input and the one in transfer)
 *
 * Excludes embeddings, the last norm (2 c) and the head (logits N V e, or 2048 V e under full).
 */
export function gpt2ActivationBytes(
  { channels, heads, layers }: GPT2Config,
  { batch, seq, dtype }: { batch: number; seq: number; dtype: DType },
  mode: ActivationMode,
  segments = layers,
): ActivationBytes {
  const tokens = batch * seq;
  const c = tokens * channels * dtypeSize(dtype);
  const statistics = tokens * (4 * heads + 16);
  const block = BLOCK * c + statistics;
  if (mode === 'none') return { held: layers * block, peak: layers * block + BACKWARD * c };
  if (mode === 'selective') {
    const held = layers * (SELECTIVE_BLOCK * c + statistics);
    return { held, peak: held + (BACKWARD + 4) * c };
  }
  if (mode === 'attention') {
    const attention = c + 4 * tokens * heads;
    const held = layers * (c + attention);
    return { held, peak: held + block - attention + BACKWARD * c };
  }
  const rebuilt = Math.ceil(layers / segments) * block;
  const held = mode === 'cpu' ? c : segments * c;
  const restored = mode === 'cpu' ? Math.min(2, segments) * c : held;
  return { held, peak: restored + rebuilt + BACKWARD * c };
}

/** Returns the same sizes for one token of one block. */
export function gpt2BlockActivations({ channels, heads }: GPT2Config): BlockActivations {
  return {
    kept: BLOCK * channels,
    statistics: 4 * heads + 16,
    backward: BACKWARD * channels,
    replayed: BACKWARD * channels,
    stream: channels,
    selective: SELECTIVE_BLOCK * channels,
  };
}

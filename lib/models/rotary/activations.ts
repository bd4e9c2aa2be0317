// What a block with rotary positions keeps of each token in training, by closed formulas.
import type { BlockActivations } from '../activation-shape.js';
import type { RotarySizes, RotaryTraits } from './config.js';

/**
 * For C channels, h inner ones, H heads of queries and K of keys, D wide: both streams and both
 * norms' results (4 C), gate, up and their product (3 h), queries and the attention's result (2 H
 * D), keys and values (2 K D); where heads are normalised, queries and keys before it too. In the
 * backward of the MLP the gradients of gate and up are beside them (2 h), in that of attention
 * those of the stream, queries and keys (2 C + H D + K D). Statistics: a log-sum-exp for each head,
 * a deviation for each norm.
 */
export function rotaryBlockActivations(
  { qkNorm }: RotaryTraits,
  { channels, hidden, heads, kvHeads, headDim }: RotarySizes,
): BlockActivations {
  const turned = (heads + kvHeads) * headDim;
  const normed = qkNorm ? 1 : 0;
  const inMlp = 2 * hidden;
  const inAttention = 2 * channels + turned;
  return {
    kept: 4 * channels + 3 * hidden + (2 + normed) * turned,
    statistics: 4 * heads + 8 + 4 * normed * (heads + kvHeads),
    backward: inMlp,
    replayed: Math.max(inMlp - channels, inAttention),
    stream: channels,
    selective: null,
  };
}

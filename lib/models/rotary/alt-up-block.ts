// A block on a stream with several versions of each token's vector. Source: Gemma 3n.
import type { LayerCache } from '../../nn/attention.js';
import { leading, required } from '../../runtime/required.js';
import { concat, type Tensor } from '../../tensor/index.js';
import { AltUp, LaurelBlock } from './alt-up.js';
import type { AttentionContext } from './attention.js';
import { RotaryBlock, sumStream } from './block.js';
import type { BodySizes } from './config.js';
import { projectInputs } from './layer-inputs.js';
import type { Norm } from './norms.js';

/** Attention and a feed-forward block on the first version of a stream. */
export class AltUpBlock extends RotaryBlock {
  /** Predicts and corrects the versions. */
  readonly altup: AltUp;
  /** A low-rank residual beside the attention. */
  readonly laurel: LaurelBlock;
  /** Before the feed-forward block. */
  declare readonly pre_feedforward_layernorm: Norm;
  /** After the feed-forward block. */
  declare readonly post_feedforward_layernorm: Norm;
  private readonly sizes: BodySizes;
  private readonly index: number;

  /** @internal Models make their blocks. */
  constructor(body: BodySizes, layer: number) {
    super(body, layer);
    this.sizes = body;
    this.index = layer;
    this.altup = new AltUp(body);
    this.laurel = new LaurelBlock(body);
  }

  /**
   * Runs the block on a stream [B, T, inputs * channels]; returns the next one. `factor` scales
   * the change.
   */
  override forward(
    branch: Tensor,
    residual: Tensor | null,
    context: AttentionContext,
    cache: LayerCache | null = null,
    factor = 1,
  ): [Tensor, null] {
    const { channels, altUp } = this.sizes;
    const { inputs, scaled } = required(altUp);
    const stream = sumStream(branch, residual);
    const [B, T] = leading(stream.shape, 2);
    const predictions = this.altup.call(stream.reshape([B, T, inputs, channels]));
    const result = this.computeResult(predictions.select(2, 0), context, cache);
    const corrected = this.altup.correct(predictions, result);
    const first = corrected.select(2, 0);
    const scaledFirst = scaled ? first.mul(this.altup.correct_output_scale) : first;
    const projected = projectInputs(this, this.sizes, this.index, {
      stream: scaledFirst,
      inputs: context.layerInputs ?? null,
    });
    const others = corrected.narrow(2, 1, inputs - 1).add(projected.unsqueeze(2));
    const next = concat([first.unsqueeze(2), others], 2).reshape([B, T, inputs * channels]);
    return [factor === 1 ? next : stream.add(next.sub(stream).mul(factor)), null];
  }

  /** Returns the result [B, T, channels] of both branches for the first version. */
  private computeResult(
    active: Tensor,
    context: AttentionContext,
    cache: LayerCache | null,
  ): Tensor {
    const x = this.input_layernorm.call(active);
    const laurel = this.laurel.call(x);
    const attended = this.post_attention_layernorm.call(this.self_attn.call(x, context, cache));
    const middle = active.add(attended).add(laurel).mul(Math.SQRT1_2);
    const fed = this.feedForward(this.pre_feedforward_layernorm.call(middle), context);
    return this.post_feedforward_layernorm.call(fed).add(middle);
  }
}

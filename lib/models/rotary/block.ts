// A block of models with rotary positions: attention, a feed-forward block, and norms around them.
import type { LayerCache } from '../../nn/attention.js';
import { SparseMixture } from '../../nn/experts.js';
import { Module } from '../../nn/module.js';
import { required } from '../../runtime/required.js';
import { dropout, scope, type Tensor } from '../../tensor/index.js';
import { scaleBranch } from '../layer-factors.js';
import { type AttentionContext, GatedAttention, RotaryAttention } from './attention.js';
import { addExperts, addExpertsResult } from './beside-experts.js';
import type { BodySizes, Window } from './config.js';
import { GatedDeltaNet } from './delta-net.js';
import { createFeedForward, type FeedForward } from './feed-forward.js';
import { type BlockAttention, LatentAttention } from './latent-attention.js';
import { addEnding, applyEnding } from './layer-inputs.js';
import { bodyAt } from './layer-kinds.js';
import { LayeredAttention } from './layered-attention.js';
import { MambaMixer } from './mamba-mixer.js';
import { setNamed } from './named-module.js';
import { type AnyNorm, createNorm, type Norm, normalizeSum } from './norms.js';
import { PackedAttention, PerHeadAttention } from './packed-attention.js';
import { ShortConvolution } from './short-convolution.js';
import type { RotaryTraits } from './traits.js';

/**
 * A block: attention and a feed-forward block, with norms where the family has them. It passes the
 * residual stream and the last branch separately: the next normalization adds them.
 */
export class RotaryBlock extends Module {
  // The constructor assigns the fields: their order is the order of parameters. The family names
  // the norms.
  /** Before the attention, in families with this norm. */
  declare readonly input_layernorm: Norm;
  /** Causal attention with rotary positions; in some layers of hybrid models a recurrence. */
  declare readonly self_attn: BlockAttention | GatedDeltaNet | ShortConvolution | MambaMixer;
  /** A state space layer beside the attention, in families with both in a block. */
  declare readonly mamba?: MambaMixer;
  /** Before the MLP; in families with norms after the branches, after the attention. */
  declare readonly post_attention_layernorm: Norm;
  /** The feed-forward block, or a mixture of experts. */
  declare readonly mlp: FeedForward;

  /** @internal Models make their blocks. */
  constructor(
    /** @internal */
    private readonly body: BodySizes,
    private readonly layer: number,
  ) {
    super();
    const { traits, norms, windows } = body;
    const layerBody = bodyAt(body, layer);
    const { names = {} } = traits;
    const window = windows[layer] ?? null;
    this.addNorm(norms.attention[0]);
    if (traits.oneBranch) {
      this.addBranch(window);
      return;
    }
    if (body.delta?.layers[layer]) {
      setNamed(this, 'self_attn', 'linear_attn', new GatedDeltaNet(body));
    } else if (body.conv?.layers[layer]) {
      setNamed(this, 'self_attn', 'conv', new ShortConvolution(body));
    } else if (body.mamba?.layers[layer] && !traits.mamba?.besideAttention) {
      setNamed(this, 'self_attn', 'mamba', new MambaMixer(body));
    } else {
      const attention = new (createAttention(traits))(layerBody, { window, layer });
      setNamed(this, 'self_attn', names.attention ?? 'self_attn', attention);
    }
    if (traits.mamba?.besideAttention) this.mamba = new MambaMixer(body);
    this.addNorm(norms.attention[1]);
    this.addNorm(norms.mlp[0]);
    this.mlp = createFeedForward(layerBody, layer);
    this.addNorm(norms.mlp[1]);
    if (traits.moe?.beside) addExperts(this, body);
    if (traits.layerKinds) addEnding(this, body);
  }

  /** Adds the branch of a block that has only one, under the family's name of attention. */
  private addBranch(window: Window): void {
    const { body, layer } = this;
    const { attention = 'self_attn' } = body.traits.names ?? {};
    if (body.feedLayers?.[layer]) {
      setNamed(this, 'mlp', attention, createFeedForward(body, layer));
    } else if (body.mamba?.layers[layer]) {
      setNamed(this, 'self_attn', attention, new MambaMixer(body));
    } else {
      setNamed(this, 'self_attn', attention, new RotaryAttention(body, { window, layer }));
    }
  }

  private addNorm(name: string | null): void {
    if (name !== null) Object.assign(this, { [name]: createNorm(this.body, this.body.channels) });
  }

  private normNamed(name: string): AnyNorm {
    return required((this as unknown as Record<string, AnyNorm>)[name]);
  }

  /**
   * Runs the block. The stream is branch + residual, or branch if residual is null; returns the
   * next pair. `factor` scales the block's contribution to the stream.
   */
  override forward(
    branch: Tensor,
    residual: Tensor | null,
    context: AttentionContext,
    cache: LayerCache | null = null,
    factor = 1,
  ): [Tensor, Tensor | null] {
    const { norms, isParallel, factors } = this.body;
    const scale = factor * factors.residual;
    if (this.body.sumNorms)
      return [this.addBranches(sumStream(branch, residual), context, cache, scale), null];
    const [stream, x] = this.enterBranch(branch, residual, norms.attention[0]);
    if (this.body.traits.oneBranch) {
      const feeds = this.body.feedLayers?.[this.layer] === true;
      const out = feeds ? this.feedForward(x, context) : this.self_attn.call(x, context, cache);
      return [this.leaveBranch(out, norms.attention[1], scale), stream];
    }
    const attended = this.leaveBranch(this.mixTokens(x, context, cache), norms.attention[1], scale);
    if (isParallel) {
      const [before] = norms.mlp;
      const y = before === null ? x : this.normNamed(before).call(stream);
      const fed = this.leaveBranch(this.feedForward(y, context), norms.mlp[1], scale);
      return [attended.add(fed), stream];
    }
    const [next, y] = this.enterBranch(attended, stream, norms.mlp[0]);
    const dense = this.feedForward(y, context);
    const { moe, traits } = this.body;
    const both =
      moe && traits.moe?.beside ? addExpertsResult(this, { dense, stream: next }) : dense;
    const fed = this.leaveBranch(both, norms.mlp[1], scale);
    if (!traits.layerKinds) return [fed, next];
    const attentionInputs = { stream: fed.add(next), inputs: context.layerInputs ?? null };
    return [applyEnding(this, this.body, this.layer, attentionInputs), null];
  }

  /** Runs a block that normalizes after each residual sum; returns the stream. */
  private addBranches(
    stream: Tensor,
    context: AttentionContext,
    cache: LayerCache | null,
    scale: number,
  ): Tensor {
    const { attention, mlp } = this.body.norms;
    const attended = this.leaveBranch(this.self_attn.call(stream, context, cache), null, scale);
    const [, middle] = normalizeSum(attended, stream, this.normNamed(required(attention[0])));
    const fed = this.leaveBranch(this.feedForward(middle, context), null, scale);
    return normalizeSum(fed, middle, this.normNamed(required(mlp[0])))[1];
  }

  /** Returns the stream, and the input of a branch. */
  private enterBranch(
    branch: Tensor,
    residual: Tensor | null,
    name: string | null,
  ): [stream: Tensor, x: Tensor] {
    if (name !== null) return normalizeSum(branch, residual, this.normNamed(name));
    const stream = residual ? branch.add(residual) : branch;
    return [stream, stream];
  }

  /** Returns the result of attention or of the layer in its place; of both, the sum. */
  private mixTokens(x: Tensor, context: AttentionContext, cache: LayerCache | null): Tensor {
    const { self_attn, body } = this;
    if (!body.traits.mamba?.besideAttention) return self_attn.call(x, context, cache);
    const { attentionIn = 1, attentionOut = 1, stateOut = 1 } = body.multipliers ?? {};
    return scope(() => {
      const state = scaleBranch(required(this.mamba).call(x, context, cache), stateOut);
      const attended = self_attn.call(scaleBranch(x, attentionIn), context, cache);
      return scaleBranch(attended, attentionOut).add(state);
    });
  }

  /** @internal */
  protected feedForward(x: Tensor, context: AttentionContext): Tensor {
    const { mlp } = this;
    return mlp instanceof SparseMixture ? mlp.call(x, context.loads) : mlp.call(x);
  }

  /** Returns the contribution of a branch to the stream. */
  private leaveBranch(branch: Tensor, name: string | null, scale: number): Tensor {
    const dropped = this.training ? dropout(branch, this.body.residualDropout) : branch;
    return scaleBranch(name === null ? dropped : this.normNamed(name).call(dropped), scale);
  }
}

function createAttention({ packed, perHead, latent, gated, layerKinds }: RotaryTraits) {
  if (layerKinds) return LayeredAttention;
  if (latent) return LatentAttention;
  if (gated === true) return GatedAttention;
  if (perHead) return PerHeadAttention;
  return packed ? PackedAttention : RotaryAttention;
}

/** Returns the stream: the sum of a branch and a residual. */
export const sumStream = (branch: Tensor, residual: Tensor | null): Tensor =>
  residual ? branch.add(residual) : branch;

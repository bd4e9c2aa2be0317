// Attention with rotary positions: norms and rotation of projected queries and keys. Projections
// are separate or packed, as in the files.

import type { LayerCache } from '../../nn/attention.js';
import { normal } from '../../nn/initializers.js';
import { type Joinable, joinedLinear, joinMemory } from '../../nn/joined-linears.js';
import { Linear } from '../../nn/linear.js';
import { Module } from '../../nn/module.js';
import { RMSNorm } from '../../nn/norms.js';
import { Parameter } from '../../nn/parameter.js';
import type { RouterLoads } from '../../nn/routers.js';
import { scoredAttention, WIDEST_HEAD } from '../../nn/scored-attention.js';
import type { SparsePattern } from '../../nn/sparse-attention.js';
import { leading, required } from '../../runtime/required.js';
import {
  attention,
  clamp,
  type HeadShare,
  isGradEnabled,
  rope,
  sigmoid,
  type Tensor,
} from '../../tensor/index.js';
import { runProjections } from '../../tensor/kept-results.js';
import { keysPerQuery } from '../../tensor/ops/attention-filter.js';
import { shareCasts } from '../../tensor/ops/fp8-linear.js';
import { areGradientsJoint, rotatedProjections } from '../../tensor/ops/joint-gradients.js';
import type { BodySizes, Window } from './config.js';
import { setNamed } from './named-module.js';
import { type AnyNorm, BareRMSNorm, createNorm, type Norm, OffsetRMSNorm } from './norms.js';
import { type Angles, pairsToHalves } from './rotary-table.js';

/** Values that the blocks of one forward share. */
export interface AttentionContext extends Angles {
  /** Angles of layers with a window, in families where they differ; null: those above. */
  ofWindows: Angles | null;
  /** Angles of queries, in families that scale queries by position; null: the same as of keys. */
  ofQueries?: Angles | null;
  /** Scales of queries by position in layers that do not rotate, as angles of 0. Default: none. */
  queryScales?: Angles | null;
  /** The rows of cos and sin for the tokens, [B, T]; null: consecutive rows from the first. */
  positions: Tensor | null;
  /** The document of each token, [B, T]; null if each row is one. */
  documents: Tensor | null;
  /** The chunk of each token, [B, T], in layers with chunks; absent or null: `documents`. */
  chunks?: Tensor | null;
  /** Receives routing statistics; null: not collected. */
  loads: RouterLoads | null;
  /** @internal Keys and values [B, Hk, T, D] that later layers read, by layer; absent: none. */
  shared?: Map<number, Pick<ProjectedHeads, 'k' | 'v'>>;
  /** The further embeddings of all blocks, [B, T, layers * width]; absent: none. */
  layerInputs?: Tensor | null;
}

/** Queries, keys and values of tokens, [B, T, heads, headDim] each. */
export interface ProjectedHeads {
  readonly q: Tensor;
  readonly k: Tensor;
  readonly v: Tensor;
  /** Gates of the results, [B, T, heads * headDim]; absent: none. */
  readonly gate?: Tensor;
}

/** @internal Creates the norm of `heads` heads of queries or keys, if the family has one. */
export function createHeadNorm(body: BodySizes, heads: number): Norm | null {
  const { qkNorm = 'none' } = body.traits;
  if (qkNorm === 'none') return null;
  if (qkNorm === 'bareHead') return new BareRMSNorm(body.headDim, body.eps) as AnyNorm as Norm;
  // Norms of heads without parameters follow the rotation, where nothing reads a weight.
  return createNorm(body, qkNorm === 'whole' ? heads * body.headDim : body.headDim) as Norm;
}

/** @internal Sets the norms of queries and keys under the names of the family. */
export function addHeadNorms(owner: Module, body: BodySizes, { layer }: LayerPlace): void {
  const { qNorm = 'q_norm', kNorm = 'k_norm' } = body.traits.names ?? {};
  const hasNorms = body.traits.qkNorm !== 'bareHead' || body.rotates[layer];
  const [queries, keys] = [body.heads, body.kvHeads].map((heads) =>
    hasNorms ? createHeadNorm(body, heads) : null,
  );
  if (!queries || !keys) {
    Object.assign(owner, { q_norm: null, k_norm: null });
    return;
  }
  setNamed(owner, 'q_norm', qNorm, queries);
  setNamed(owner, 'k_norm', kNorm, keys);
}

/** Values of a layer that differ from others of the model. */
export interface LayerPlace {
  /** Number of tokens that queries see; null: all. */
  readonly window: Window;
  readonly layer: number;
}

/** Attention with rotary positions; several query heads share a key and value head. */
export abstract class RotaryAttentionBase extends Module {
  /** The norm of queries, usually before the rotation; null if the family has none. */
  abstract readonly q_norm: Norm | null;
  /** Norm of keys. */
  abstract readonly k_norm: Norm | null;
  /** The blocks of tokens that queries see; null: all. See nn.sparsify(). */
  sparsity: SparsePattern | null = null;
  /** @internal The share of the heads if other ranks have the rest. */
  headShare: HeadShare | null = null;

  /** @internal Blocks make theirs. */
  constructor(
    /** @internal */
    protected readonly body: BodySizes,
    private readonly place: LayerPlace,
  ) {
    super();
  }

  /** From heads * headDim back to channels; Llama calls it o_proj. */
  private get outProjection(): Linear {
    const { out = 'o_proj' } = this.body.traits;
    return required((this as unknown as Record<string, Linear>)[out]);
  }

  /** @internal Adds the output projection under the family's name. */
  protected addOutProjection(): void {
    const { channels, heads, headDim, outBias: bias, traits } = this.body;
    const { out = 'o_proj' } = traits;
    Object.assign(this, { [out]: new Linear(heads * headDim, channels, { bias }) });
  }

  /** Tokens of a chunk, if tokens of this layer see only their own chunk; null: they see all. */
  private get chunk(): number | null {
    const { attentionChunk = null, rotates } = this.body;
    return rotates[this.place.layer] ? attentionChunk : null;
  }

  /** @internal Projects tokens [B, T, C] to queries, keys and values. */
  protected abstract project(x: Tensor): ProjectedHeads;

  /**
   * @internal Returns rotated queries, rotated keys, and values [B, heads, T, headDim] of layers
   * that share the gradient of x; null for others.
   */
  protected projectRotated(_x: Tensor, _context: AttentionContext): ProjectedHeads | null {
    return null;
  }

  /** @internal Whether heads are rotated as projected, by halves, all by equal angles. */
  protected rotatesPlainly({ ofQueries }: AttentionContext): boolean {
    return (
      this.body.factors.clip === null &&
      Boolean(this.body.rotates[this.place.layer]) &&
      !this.body.traits.rope?.interleaved &&
      !ofQueries
    );
  }

  /** @internal Returns the channels of results [B, T, heads, headDim] that values have. */
  protected selectValues(mixed: Tensor): Tensor {
    return mixed;
  }

  /**
   * Attends with x [B, T, C] at the positions of `context`; with a cache, the tokens after the
   * cached ones.
   */
  override forward(x: Tensor, context: AttentionContext, cache: LayerCache | null): Tensor {
    const rotated = cache ? null : this.projectRotated(x, context);
    if (rotated) return this.projectOut(this.attend(rotated.q, rotated, context, null), {});
    const heads = this.clipHeads(this.project(x));
    const mixed = this.attendFused(cache, heads, context) ?? this.mixHeads(heads, context, cache);
    return this.projectOut(mixed, heads);
  }

  private clipHeads(heads: ProjectedHeads): ProjectedHeads {
    const { clip } = this.body.factors;
    if (clip === null) return heads;
    const [q, k, v] = [heads.q, heads.k, heads.v].map((values) => clamp(values, -clip, clip));
    return { ...heads, q: required(q), k: required(k), v: required(v) };
  }

  /** @internal Projects results [B, H, T, D] back to the stream. */
  protected projectOut(mixed: Tensor, heads: Partial<Pick<ProjectedHeads, 'gate'>>): Tensor {
    const byToken = this.selectValues(mixed.transpose(1, 2));
    const joined = byToken.reshape([byToken.size(0), byToken.size(1), -1]);
    const gated = heads.gate ? joined.mul(sigmoid(heads.gate)) : joined;
    return this.projection(this.outProjection, gated);
  }

  /** @internal `layer` of x; a checkpoint may keep its result. Adapters change theirs in place. */
  protected projection(layer: Linear, x: Tensor, isRead = true): Tensor {
    const isPlain = layer.constructor === Linear && !layer.isHooked;
    return isPlain ? this.beside(x.size(1), isRead, () => layer.call(x)) : layer.call(x);
  }

  /** @internal Queries or keys before `norm` and rotation, which the backward reads for a norm. */
  protected turning(layer: Linear, x: Tensor, norm: Norm | null): Tensor {
    const { rotates, traits } = this.body;
    if (norm || traits.rope?.interleaved) return layer.call(x);
    return this.projection(layer, x, !rotates[this.place.layer]);
  }

  /** Runs `body` beside this attention of `tokens` tokens. */
  private beside<T>(tokens: number, isRead: boolean, body: () => T): T {
    const window = this.place.window ?? 0;
    const keys = keysPerQuery({ T: tokens, S: tokens }, { window, causal: true });
    return runProjections({ keys, isRead }, body);
  }

  /** Normalizes, rotates, stores and attends by a fused op of the cache; null for other caches. */
  private attendFused(
    cache: LayerCache | null,
    heads: ProjectedHeads,
    context: AttentionContext,
  ): Tensor | null {
    const { positions } = context;
    const { rotaryDim, headDim, rotates, traits, factors } = this.body;
    const { window, layer } = this.place;
    if (!cache?.attendRotary || !positions || this.sparsity || rotaryDim < headDim) return null;
    if (context.ofQueries || this.chunk !== null) return null;
    if (!rotates[layer] || traits.rope?.interleaved) return null;
    if (headDim > WIDEST_HEAD) return null;
    const { q_norm, k_norm } = this;
    if (traits.qkNorm === 'whole' || traits.qkNormLast) return null;
    if (q_norm && !isPlainRms(q_norm)) return null;
    const norms = q_norm && k_norm && { q: q_norm.weight, k: k_norm.weight, eps: q_norm.eps };
    const { cos, sin } = this.selectAngles(context);
    return cache.attendRotary(
      { ...heads, cos, sin, positions, norms },
      {
        window,
        scale: factors.scores,
        scoreCap: factors.scoreCap,
        sinks: this.ownSinks(heads.q.size(2)),
      },
    );
  }

  /** @internal */
  protected selectAngles(context: AttentionContext): Angles {
    const { ofWindows } = context;
    return (this.body.ownAngles[this.place.layer] && ofWindows) || context;
  }

  private mixHeads(
    heads: ProjectedHeads,
    context: AttentionContext,
    cache: LayerCache | null,
  ): Tensor {
    const k = this.rotate(heads.k, this.k_norm, context);
    const v = heads.v.transpose(1, 2);
    const ofQueries = { ...context, ...context.ofQueries };
    const q = this.rotate(heads.q, this.q_norm, ofQueries, context.queryScales);
    return this.attend(q, { k, v }, context, cache);
  }

  /**
   * @internal Attends with rotated queries and keys. If `keys` is null, the cache has the keys
   * already.
   */
  protected attend(
    q: Tensor,
    keys: Pick<ProjectedHeads, 'k' | 'v'> | null,
    context: AttentionContext,
    cache: LayerCache | null,
  ): Tensor {
    const { headShare, sparsity, body } = this;
    const { window } = this.place;
    const { scores: scale, scoreCap } = body.factors;
    const sinks = this.ownSinks(q.size(1));
    const alibiSlopes = this.ownSlopes(q);
    const chunk = this.chunk;
    const reach = { window, chunk, sparsity, headShare, scale, scoreCap, sinks, alibiSlopes };
    if (cache && !keys) return required(cache.attendStored).call(cache, q, reach);
    const { k, v } = required(keys);
    if (cache) return cache.attend(q, k, v, reach);
    const dropout = this.training ? body.attentionDropout : 0;
    const documents = (chunk !== null && context.chunks) || context.documents;
    // The kernel drops no weights of bounded scores.
    if (body.headDim > WIDEST_HEAD || (scoreCap !== null && dropout > 0)) {
      return scoredAttention(q, k, v, { ...reach, cap: scoreCap, documents, dropout });
    }
    return attention(q, k, v, {
      causal: true,
      documents,
      window,
      layout: sparsity?.layout(body.heads, q.size(2)) ?? null,
      dropout,
      headShare,
      scale,
      cap: scoreCap,
      sinks,
      alibiSlopes,
    });
  }

  /** Returns the sinks of this rank's `count` heads; null if the family has none. */
  private ownSinks(count: number): Tensor | null {
    const { sinks } = this as { sinks?: Parameter };
    if (!sinks) return null;
    const first = this.headShare?.first ?? 0;
    return count === sinks.numel ? sinks : sinks.narrow(0, first, count);
  }

  /** Returns the slopes of this rank's heads; null if the family has none. */
  private ownSlopes(q: Tensor): Tensor | null {
    const all = this.body.slopes?.slopesOn(q);
    return all?.narrow(0, this.headShare?.first ?? 0, q.size(1)) ?? null;
  }

  /** @internal Adds the sinks, in families with them. */
  protected addSinks(): void {
    const { heads, initializerRange, traits } = this.body;
    if (!traits.sinks) return;
    Object.assign(this, { sinks: new Parameter([heads], normal(initializerRange)) });
  }

  /** Reshapes [B, T, heads * headDim] to [B, T, heads, headDim]. */
  protected splitHeads(x: Tensor): Tensor {
    return x.reshape([x.size(0), x.size(1), -1, this.body.headDim]);
  }

  /** @internal */
  protected rotate(
    heads: Tensor,
    norm: Norm | null,
    context: AttentionContext,
    scales: Angles | null = null,
  ): Tensor {
    const { rotates, rotaryDim, traits } = this.body;
    const { qkNorm = 'none', qkNormLast, rope: { interleaved = false } = {} } = traits;
    if (norm && qkNormLast) return norm.call(this.rotate(heads, null, context));
    const normed = !norm
      ? heads
      : qkNorm === 'whole'
        ? norm.call(heads.reshape([heads.size(0), heads.size(1), -1])).reshape(heads.shape)
        : norm.call(heads);
    const isStill = !rotates[this.place.layer];
    const angles = isStill ? scales : this.selectAngles(context);
    if (!angles) return normed.transpose(1, 2);
    const { cos, sin } = angles;
    const paired = interleaved && !isStill ? pairsToHalves(normed, rotaryDim) : normed;
    const by = (): Tensor => rope(paired, cos, sin, context.positions);
    const rotated = this.beside(paired.size(1), true, by);
    // A queryScale is for layers that do not rotate.
    if (isStill || !scales || this.body.queryScale) return rotated.transpose(1, 2);
    return rope(rotated, scales.cos, scales.sin, context.positions).transpose(1, 2);
  }
}

const isPlainRms = (norm: Norm): boolean =>
  norm instanceof RMSNorm && !(norm instanceof OffsetRMSNorm);

/** The attention of Llama, Mistral and Qwen, with separate projections. */
export class RotaryAttention extends RotaryAttentionBase implements Joinable {
  /** Maps channels to heads * headDim. */
  readonly q_proj: Linear;
  /** Maps channels to kvHeads * headDim. */
  readonly k_proj: Linear;
  /** Maps channels to kvHeads * headDim. */
  readonly v_proj: Linear;
  /** From channels to gates of the results, heads * headDim, in families with them. */
  declare readonly gate_proj?: Linear;
  /** From heads * headDim back to channels; some families have another name. */
  declare readonly o_proj: Linear;
  // Assigned after the output projection: the order of fields is the order of parameters.
  declare readonly q_norm: Norm | null;
  declare readonly k_norm: Norm | null;
  private isJoined = false;

  /** `body`: sizes of the model. `place`: the index of this layer. */
  constructor(body: BodySizes, place: LayerPlace) {
    super(body, place);
    const { channels, heads, kvHeads, headDim, qkvBias: bias } = body;
    this.q_proj = new Linear(channels, heads * headDim, { bias });
    this.k_proj = new Linear(channels, kvHeads * headDim, { bias });
    this.v_proj = new Linear(channels, kvHeads * headDim, { bias });
    if (body.traits.gated) this.gate_proj = new Linear(channels, heads * headDim, { bias: false });
    this.addOutProjection();
    addHeadNorms(this, body, place);
    this.addSinks();
  }

  /** @internal See Joinable. */
  joinLinears(): void {
    this.isJoined = joinMemory([this.q_proj, this.k_proj, this.v_proj]);
  }

  /**
   * Computes queries, keys and values by one product if their weights are joined, else by three.
   */
  /** @internal */
  protected override project(x: Tensor): ProjectedHeads {
    const { q_proj, k_proj, v_proj } = this;
    const layers = [q_proj, k_proj, v_proj];
    const joined = this.isJoined ? joinedLinear(x, layers, this.body.headDim) : null;
    if (joined) {
      const [q, k, v] = leading(joined, 3);
      return { q, k, v, ...this.gateOf(x) };
    }
    return shareCasts(x, () => {
      const k = this.splitHeads(this.turning(k_proj, x, this.k_norm));
      const v = this.splitHeads(this.projection(v_proj, x));
      const q = this.splitHeads(this.turning(q_proj, x, this.q_norm));
      return { q, k, v, ...this.gateOf(x) };
    });
  }

  /** @internal */
  protected override projectRotated(x: Tensor, context: AttentionContext): ProjectedHeads | null {
    const { q_proj, k_proj, v_proj, q_norm, gate_proj } = this;
    const arePlain = [q_proj, k_proj, v_proj].every((layer) => layer.isPlainProduct);
    if (!areGradientsJoint(x) || !arePlain || q_norm || gate_proj) return null;
    if (!this.rotatesPlainly(context) || (this.isJoined && !isGradEnabled())) return null;
    const byToken = (heads: Tensor): Tensor => this.rotate(heads, null, context).transpose(1, 2);
    const heads = rotatedProjections(x, {
      weights: [q_proj.weight, k_proj.weight, v_proj.weight],
      rotation: { ...this.selectAngles(context), positions: context.positions },
      project: () => {
        const k = byToken(this.splitHeads(this.turning(k_proj, x, null)));
        const v = this.splitHeads(this.projection(v_proj, x));
        return [byToken(this.splitHeads(this.turning(q_proj, x, null))), k, v];
      },
    });
    const [q, k, v] = heads.map((each) => each.transpose(1, 2)) as [Tensor, Tensor, Tensor];
    return { q, k, v };
  }

  private gateOf(x: Tensor): Pick<ProjectedHeads, 'gate'> {
    return this.gate_proj ? { gate: this.projection(this.gate_proj, x) } : {};
  }
}

/** The attention of Qwen3-Next: q_proj has the query and a gate of each head. */
export class GatedAttention extends RotaryAttentionBase {
  /** From channels to heads * 2 headDim: for each head, its query and its gate. */
  readonly q_proj: Linear;
  /** Maps channels to kvHeads * headDim. */
  readonly k_proj: Linear;
  /** Maps channels to kvHeads * headDim. */
  readonly v_proj: Linear;
  /** Maps heads * headDim back to channels. */
  declare readonly o_proj: Linear;
  declare readonly q_norm: Norm | null;
  declare readonly k_norm: Norm | null;

  /** `body`: sizes of the model. `place`: the index of this layer. */
  constructor(body: BodySizes, place: LayerPlace) {
    super(body, place);
    const { channels, heads, kvHeads, headDim, qkvBias: bias } = body;
    this.q_proj = new Linear(channels, 2 * heads * headDim, { bias });
    this.k_proj = new Linear(channels, kvHeads * headDim, { bias });
    this.v_proj = new Linear(channels, kvHeads * headDim, { bias });
    this.addOutProjection();
    addHeadNorms(this, body, place);
  }

  /** @internal */
  protected override project(x: Tensor): ProjectedHeads {
    const [B, T] = leading(x.shape, 2);
    const { headDim } = this.body;
    return shareCasts(x, () => {
      const both = this.q_proj.call(x).reshape([B, T, -1, 2 * headDim]);
      const [q, gate] = leading(both.split(headDim, 3), 2);
      const k = this.splitHeads(this.k_proj.call(x));
      const v = this.splitHeads(this.v_proj.call(x));
      return { q, k, v, gate: gate.reshape([B, T, -1]) };
    });
  }
}

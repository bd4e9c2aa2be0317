// Multi-head attention with PyTorch's parameters, masks and layouts.

import { DsError } from '../errors.js';
import { argumentError } from '../runtime/input-errors.js';
import { namesOf, readOptions } from '../runtime/options.js';
import { requireFinite, requireInteger } from '../runtime/require-number.js';
import { leading, required } from '../runtime/required.js';
import { describe } from '../runtime/view.js';
import { attention, linear, scope, split, type Tensor } from '../tensor/index.js';
import { requireTensor } from '../tensor/ops/shapes.js';
import {
  type AttentionMasks,
  keyFilter,
  maskedAttention,
  needsGradient,
} from './attention-masks.js';
import { xavierUniform, zeros } from './initializers.js';
import { Linear } from './linear.js';
import { Module } from './module.js';
import { Parameter } from './parameter.js';
import type { SparsePattern } from './sparse-attention.js';

/** Options of MultiheadAttention. */
export interface MultiheadAttentionOptions {
  /** Fraction of the attention weights that training drops. Default: 0. */
  dropout?: number;
  /** Whether all projections have biases. Default: true. */
  bias?: boolean;
  /**
   * Whether inputs and outputs are [B, T, E] instead of [T, B, E]. Default: false, as in PyTorch.
   */
  batchFirst?: boolean;
}

/** Options of one call of MultiheadAttention. */
export interface AttentionCall extends AttentionMasks {
  /**
   * Also return the attention weights, which the fused kernel never stores. Default: false;
   * PyTorch's is true.
   */
  needWeights?: boolean;
  /** Average these weights over the heads: [B, T, S] instead of [B, H, T, S]. Default: true. */
  averageAttnWeights?: boolean;
}

/**
 * Attention of `heads` heads over packed projections: in_proj_weight [3E, E] for queries, keys and
 * values, and out_proj. It uses the fused kernel for all masks and dropout. If the weights are
 * requested, or a mask requires a gradient, it uses products and a softmax. A query with only
 * hidden keys gets the bias of out_proj: its attention is 0 (PyTorch: NaN). Source: Vaswani et al.
 * 2017.
 */
export class MultiheadAttention extends Module {
  /** Projection of queries, keys and values: [3 channels, channels]. */
  readonly in_proj_weight: Parameter;
  /** Biases of the projections [3 channels]; null without biases. */
  readonly in_proj_bias: Parameter | null;
  /** Maps the heads' outputs to channels. */
  readonly out_proj: Linear;
  /** Probability that an attention weight becomes 0 in training. */
  readonly dropout: number;
  /** Whether inputs are [B, T, C]; else [T, B, C]. */
  readonly batchFirst: boolean;
  /**
   * The blocks of tokens that queries see in self-attention; null: all. Attention to another
   * sequence sees all. See nn.sparsify().
   */
  sparsity: SparsePattern | null = null;

  /** Throws DS_ARGUMENT, also if the heads do not divide the channels. */
  constructor(
    /** Channels of inputs and outputs. */
    readonly channels: number,
    /** Heads, each of channels / heads. */
    readonly heads: number,
    given: MultiheadAttentionOptions = {},
  ) {
    super();
    const options = readOptions('MultiheadAttention', given, namesOf.MultiheadAttentionOptions);
    requireInteger('MultiheadAttention channels', channels, 1);
    requireInteger('MultiheadAttention heads', heads, 1);
    if (channels % heads !== 0) {
      const expected = `heads that divide ${channels} channels`;
      throw argumentError('MultiheadAttention', expected, `${heads}`);
    }
    this.dropout = requireFinite('MultiheadAttention dropout', options.dropout ?? 0, 0, 1);
    this.batchFirst = options.batchFirst ?? false;
    const bias = options.bias ?? true;
    this.in_proj_weight = new Parameter([3 * channels, channels], xavierUniform());
    this.in_proj_bias = bias ? new Parameter([3 * channels], zeros) : null;
    this.out_proj = new Linear(channels, channels, { bias, biasInit: zeros });
  }

  /**
   * Returns the attention of query [T, B, E] to key and value [S, B, E], or batch first, or without
   * a batch [T, E] and [S, E]: the output, shaped like the query, and the attention weights or
   * null. Throws DS_SHAPE or DS_DTYPE if the tensors do not fit together, DS_ARGUMENT for invalid
   * options.
   */
  override forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    given: AttentionCall = {},
  ): [Tensor, Tensor | null] {
    const call = readOptions('MultiheadAttention.call', given, namesOf.AttentionCall);
    for (const input of [query, key, value]) this.requireShape(input, query);
    return scope(() => {
      const parts = this.project(query, key, value).map((part) => this.headsOf(part));
      const [q, k, v] = leading(parts, 3);
      const isSelfAttention = query === key;
      const { out, weights } = this.attend([q, k, v], call, isSelfAttention ? this.sparsity : null);
      const [B, , T] = leading(q.shape, 3);
      const merged = this.out_proj.call(out.transpose(1, 2).reshape([B, T, this.channels]));
      const shaped = this.isBatched(query) ? this.swapBatch(merged) : merged.squeeze(0);
      return [shaped, weights && this.shapeWeights(weights, query, call)];
    });
  }

  private attend(
    [q, k, v]: readonly [Tensor, Tensor, Tensor],
    call: AttentionCall,
    sparsity: SparsePattern | null,
  ) {
    const op = 'MultiheadAttention';
    const { isCausal = false, needWeights = false } = call;
    const p = this.training ? this.dropout : 0;
    if (!needWeights && !needsGradient(call)) {
      const [B, H, T] = leading(q.shape, 3);
      const filter = keyFilter(op, call, [B, H, T, k.size(2)]);
      const layout = sparsity?.layout(H, T) ?? null;
      const options = { ...filter, layout, causal: isCausal, dropout: p };
      return { out: attention(q, k, v, options), weights: null };
    }
    if (sparsity && !sparsity.isDense) throw noWeightsError();
    const { out, weights } = maskedAttention(op, [q, k, v], call, p);
    return { out, weights: needWeights ? weights : null };
  }

  /** Returns queries, keys and values, batch first, by one product if they have one input. */
  private project(query: Tensor, key: Tensor, value: Tensor): Tensor[] {
    const { in_proj_weight: weight, in_proj_bias: bias, channels } = this;
    const batch = (x: Tensor): Tensor => (this.isBatched(x) ? this.swapBatch(x) : x.unsqueeze(0));
    if (query === key && key === value)
      return split(linear(batch(query), weight, bias), channels, -1);
    const weights = split(weight, channels);
    const biases = bias ? split(bias, channels) : [];
    return [query, key, value].map((x, i) =>
      linear(batch(x), required(weights[i]), biases[i] ?? null),
    );
  }

  /** Returns [B, T, E] as [B, H, T, E / H]. */
  private headsOf(x: Tensor): Tensor {
    const [B, T] = leading(x.shape, 2);
    return x.reshape([B, T, this.heads, this.channels / this.heads]).transpose(1, 2);
  }

  private isBatched(x: Tensor): boolean {
    return x.ndim === 3;
  }

  /** Swaps batch and time unless the batch is first. */
  private swapBatch(x: Tensor): Tensor {
    return this.batchFirst ? x : x.transpose(0, 1);
  }

  private shapeWeights(weights: Tensor, query: Tensor, call: AttentionCall): Tensor {
    const mean = (call.averageAttnWeights ?? true) ? weights.mean(1) : weights;
    return this.isBatched(query) ? mean : mean.squeeze(0);
  }

  private requireShape(x: Tensor, query: Tensor): void {
    for (const tensor of [query, x]) requireTensor('MultiheadAttention', tensor);
    const { channels, batchFirst } = this;
    const fits = (x.ndim === 2 || x.ndim === 3) && x.ndim === query.ndim;
    const batchDim = batchFirst ? 0 : 1;
    const isOneBatch = x.ndim === 2 || x.shape[batchDim] === query.shape[batchDim];
    if (fits && isOneBatch && x.shape.at(-1) === channels) return;
    throw new DsError({
      code: 'DS_SHAPE',
      op: 'MultiheadAttention',
      expected: batchFirst
        ? `[B, T, ${channels}] of one batch`
        : `[T, B, ${channels}] of one batch`,
      got: `${describe(x)} with a query ${describe(query)}`,
      hint: batchFirst ? '' : 'If the batch is dim 0, set batchFirst: true.',
    });
  }
}

function noWeightsError(): DsError {
  return argumentError(
    'MultiheadAttention',
    'sparse attention without needWeights and without a mask that requires a gradient',
    'needWeights, or a mask that requires a gradient',
    'Sparse attention does not compute the scores of hidden blocks; nn.sparsify(model, null) makes attention dense.',
  );
}

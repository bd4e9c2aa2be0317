// A layer of an encoder: attention to all tokens, and a feed-forward block.

import { type Joinable, joinedLinear, joinMemory } from '../../nn/joined-linears.js';
import { Linear } from '../../nn/linear.js';
import { Module } from '../../nn/module.js';
import { LayerNorm } from '../../nn/norms.js';
import { leading } from '../../runtime/required.js';
import {
  attention,
  dropout,
  gelu,
  type HeadShare,
  relu,
  rope,
  silu,
  type Tensor,
  tanh,
} from '../../tensor/index.js';
import { shareCasts } from '../../tensor/ops/fp8-linear.js';
import { type Norm, normalizeSum, PlainLayerNorm } from '../rotary/norms.js';
import type { Angles } from '../rotary/rotary-table.js';
import type { EncoderBodySizes } from './config.js';
import { findAt, placeChild } from './paths.js';
import { type RelativeDistances, relativeAttention } from './relative.js';
import type { EncoderActivation } from './traits.js';

/** Inputs that all layers of a forward share. */
export interface EncoderContext {
  /** The document of each token, [B, T] i32; padding is negative. Null: no padding. */
  readonly documents: Tensor | { readonly queries: Tensor; readonly keys: Tensor } | null;
  /** Angles of rotary positions: for layers without and with a window. Null: other positions. */
  readonly angles: { readonly all: Angles; readonly ofWindows: Angles } | null;
  /** Relative positions; null: other positions. */
  readonly distances: RelativeDistances | null;
}

const ACTIVATIONS: Readonly<Record<EncoderActivation, (x: Tensor) => Tensor>> = {
  gelu: (x) => gelu(x, 'none'),
  geluTanh: (x) => gelu(x, 'tanh'),
  relu,
  silu,
  tanh,
};

/** @internal Applies an activation. */
export const applyActivation = (kind: EncoderActivation, x: Tensor): Tensor => ACTIVATIONS[kind](x);

/** @internal Returns a norm of the family for `width` channels. */
export const createEncoderNorm = ({ biases, eps }: EncoderBodySizes, width: number): Norm =>
  biases ? new LayerNorm(width, eps) : new PlainLayerNorm(width, eps);

/**
 * Attention without output projection, in which queries also see later tokens. The family names the
 * projections.
 */
class EncoderAttention extends Module implements Joinable {
  /** @internal The heads of this rank, with tensor parallelism; null: all heads. */
  headShare: HeadShare | null = null;
  private isJoined = false;

  /** @internal The layer creates it. */
  constructor(
    private readonly body: EncoderBodySizes,
    private readonly layer: number,
  ) {
    super();
    const { channels, names, biases: bias } = body;
    const { projections } = names.layer;
    const width = projections.length === 1 ? 3 * channels : channels;
    for (const name of projections) placeChild(this, name, new Linear(channels, width, { bias }));
  }

  /** @internal See Joinable. */
  joinLinears(): void {
    const { projections } = this.body.names.layer;
    if (projections.length === 3) this.isJoined = joinMemory(this.projections);
  }

  private get projections(): Linear[] {
    return this.body.names.layer.projections.map((name) => findAt<Linear>(this, name));
  }

  /** Returns the weighted values [B, T, C] for x [B, T, C]. */
  override forward(x: Tensor, context: EncoderContext): Tensor {
    const { heads, channels, windows, attentionDropout } = this.body;
    const width = channels / heads;
    const [q, k, v] = this.project(x, width);
    const [B, T] = leading(x.shape, 2);
    const p = this.training ? attentionDropout : 0;
    const window = windows[this.layer] ?? null;
    const mixed = context.distances
      ? relativeAttention([q, k, v], this.projections, context.distances, {
          documents: context.documents,
          dropout: p,
        })
      : attention(this.rotate(q, context), this.rotate(k, context), v.transpose(1, 2), {
          documents: context.documents,
          // The kernel's window includes the query; an encoder's window is the number of tokens on
          // each side.
          window: window === null ? null : window + 1,
          dropout: p,
          headShare: this.headShare,
        });
    return mixed.transpose(1, 2).reshape([B, T, -1]);
  }

  /** Returns queries, keys and values, [B, T, H, D] each. */
  private project(x: Tensor, width: number): [Tensor, Tensor, Tensor] {
    const [B, T] = leading(x.shape, 2);
    const { projections } = this;
    const [first] = leading(projections, 1);
    if (projections.length === 1) {
      const parts = first.call(x).reshape([B, T, 3, -1, width]).split(1, 2);
      return leading(
        parts.map((part) => part.squeeze(2).contiguous()),
        3,
      );
    }
    const joined = this.isJoined ? joinedLinear(x, projections, width) : null;
    if (joined) return leading(joined, 3);
    const apart = shareCasts(x, () =>
      projections.map((projection) => projection.call(x).reshape([B, T, -1, width])),
    );
    return leading(apart, 3);
  }

  private rotate(heads: Tensor, { angles }: EncoderContext): Tensor {
    if (!angles) return heads.transpose(1, 2);
    const isLocal = this.body.windows[this.layer] != null;
    const { cos, sin } = isLocal ? angles.ofWindows : angles.all;
    return rope(heads, cos, sin, null).transpose(1, 2);
  }
}

/** A layer with norms after its two branches, or before them. The family names the modules. */
export class EncoderLayer extends Module {
  /** @internal The body creates it. */
  constructor(
    private readonly body: EncoderBodySizes,
    layer: number,
  ) {
    super();
    const { channels, hidden, names, biases: bias, traits } = body;
    const { attention: path, out, attentionNorm, first, second, feedNorm } = names.layer;
    const isPre = traits.lastNorm !== undefined;
    if (isPre && layer > 0) placeChild(this, attentionNorm, createEncoderNorm(body, channels));
    placeChild(this, path, new EncoderAttention(body, layer));
    placeChild(this, out, new Linear(channels, channels, { bias }));
    if (!isPre) placeChild(this, attentionNorm, createEncoderNorm(body, channels));
    if (isPre) placeChild(this, feedNorm, createEncoderNorm(body, channels));
    placeChild(this, first, new Linear(channels, traits.gated ? 2 * hidden : hidden, { bias }));
    placeChild(this, second, new Linear(hidden, channels, { bias }));
    if (!isPre) placeChild(this, feedNorm, createEncoderNorm(body, channels));
    this.#hasFirstNorm = !isPre || layer > 0;
  }

  readonly #hasFirstNorm: boolean;

  /** Returns hidden states [B, T, C] for hidden states x [B, T, C]. */
  override forward(x: Tensor, context: EncoderContext): Tensor {
    const { traits, names } = this.body;
    const { attentionNorm, feedNorm } = names.layer;
    if (traits.lastNorm === undefined) {
      const [, a] = normalizeSum(this.attend(x, context), x, findAt<Norm>(this, attentionNorm));
      return normalizeSum(this.feedForward(a), a, findAt<Norm>(this, feedNorm))[1];
    }
    const before = this.#hasFirstNorm ? findAt<Norm>(this, attentionNorm).call(x) : x;
    const branch = this.attend(before, context);
    const [stream, y] = normalizeSum(branch, x, findAt<Norm>(this, feedNorm));
    return stream.add(this.feedForward(y));
  }

  private attend(x: Tensor, context: EncoderContext): Tensor {
    const { attention: path, out } = this.body.names.layer;
    const mixed = findAt<EncoderAttention>(this, path).call(x, context);
    return this.drop(findAt<Linear>(this, out).call(mixed));
  }

  private feedForward(x: Tensor): Tensor {
    const { names, activation, traits } = this.body;
    const { first, second } = names.layer;
    const inner = findAt<Linear>(this, first).call(x);
    return this.drop(
      findAt<Linear>(this, second).call(
        traits.gated ? this.gate(inner) : applyActivation(activation, inner),
      ),
    );
  }

  private gate(inner: Tensor): Tensor {
    const [a, b] = leading(inner.split(inner.size(-1) / 2, -1), 2);
    return applyActivation(this.body.activation, a).mul(b);
  }

  private drop(x: Tensor): Tensor {
    return this.training ? dropout(x, this.body.dropout) : x;
  }
}

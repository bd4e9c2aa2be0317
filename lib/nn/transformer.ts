// Transformer encoder and decoder layers, and stacks of them, with PyTorch's parameters, masks and
// defaults.

import { formatValue } from '../runtime/format-value.js';
import { argumentError, valueError } from '../runtime/input-errors.js';
import { namesOf, readOptions } from '../runtime/options.js';
import { requireInteger } from '../runtime/require-number.js';
import { gelu, relu, type Tensor } from '../tensor/index.js';
import type { AttentionMasks } from './attention-masks.js';
import { Dropout } from './dropout.js';
import { Linear } from './linear.js';
import { Module } from './module.js';
import { MultiheadAttention } from './multihead-attention.js';
import { LayerNorm } from './norms.js';

/** Options of TransformerEncoderLayer and TransformerDecoderLayer. */
export interface TransformerLayerOptions {
  /** Width of the feed-forward block. Default: 2048. */
  dimFeedforward?: number;
  /** Dropout of sums, activations and attention weights in training. Default: 0.1. */
  dropout?: number;
  /** "relu", the default, "gelu" (exact), or a function. */
  activation?: 'relu' | 'gelu' | ((x: Tensor) => Tensor);
  /** Added to the variance in layer norms. Default: 1e-5. */
  layerNormEps?: number;
  /** Whether inputs are [B, T, C] instead of [T, B, C]. Default: false, as in PyTorch. */
  batchFirst?: boolean;
  /**
   * Whether to normalize the inputs of attention and feed-forward instead of the sums. Default:
   * false.
   */
  normFirst?: boolean;
}

/** Masks of an encoder layer's self-attention; see AttentionMasks. */
export interface EncoderMasks {
  /** Mask of queries and keys: see attnMask of AttentionMasks. */
  srcMask?: Tensor | null;
  /** Mask of padding: see keyPaddingMask of AttentionMasks. */
  srcKeyPaddingMask?: Tensor | null;
  /** Hides later tokens: see isCausal of AttentionMasks. */
  isCausal?: boolean;
}

/**
 * Masks of a decoder layer's self-attention (tgt) and of its attention to the encoder (memory); see
 * AttentionMasks.
 */
export interface DecoderMasks {
  /** attnMask of the self-attention. */
  tgtMask?: Tensor | null;
  /** attnMask of the attention to the encoder. */
  memoryMask?: Tensor | null;
  /** keyPaddingMask of the self-attention. */
  tgtKeyPaddingMask?: Tensor | null;
  /** keyPaddingMask of the attention to the encoder. */
  memoryKeyPaddingMask?: Tensor | null;
  /** isCausal of the self-attention. */
  tgtIsCausal?: boolean;
  /** isCausal of the attention to the encoder. */
  memoryIsCausal?: boolean;
}

type Activation = (x: Tensor) => Tensor;

function activationOf(op: string, given: TransformerLayerOptions['activation']): Activation {
  if (given === undefined || given === 'relu') return relu;
  if (given === 'gelu') return (x) => gelu(x);
  if (typeof given === 'function') return given;
  const expected = '"relu", "gelu" or a function of a tensor';
  const got = formatValue(given);
  throw argumentError(`${op} activation`, expected, got);
}

/** Base of both layers: self-attention, feed-forward, and residual additions. */
abstract class TransformerLayer extends Module {
  /** Attention of the tokens to each other. */
  readonly self_attn: MultiheadAttention;
  /** Feed-forward: first projection. */
  readonly linear1: Linear;
  /** Dropout between the projections. */
  readonly dropout: Dropout;
  /** Feed-forward: second projection. */
  readonly linear2: Linear;
  /** Whether norms come before attention and feed-forward; else after the additions. */
  readonly normFirst: boolean;
  private readonly activation: Activation;

  protected constructor(
    op: string,
    channels: number,
    heads: number,
    options: TransformerLayerOptions,
  ) {
    super();
    const { dimFeedforward = 2048, dropout = 0.1, batchFirst = false } = options;
    requireInteger(`${op} dimFeedforward`, dimFeedforward, 1);
    this.activation = activationOf(op, options.activation);
    this.self_attn = new MultiheadAttention(channels, heads, { dropout, batchFirst });
    this.linear1 = new Linear(channels, dimFeedforward);
    this.dropout = new Dropout(dropout);
    this.linear2 = new Linear(dimFeedforward, channels);
    this.normFirst = options.normFirst ?? false;
  }

  /** Returns x plus `branch`(x), normalized before or after. */
  protected residual(x: Tensor, norm: LayerNorm, branch: (x: Tensor) => Tensor): Tensor {
    if (this.normFirst) return x.add(this.dropout.call(branch(norm.call(x))));
    return norm.call(x.add(this.dropout.call(branch(x))));
  }

  protected attendSelf(x: Tensor, masks: AttentionMasks): Tensor {
    return this.self_attn.call(x, x, x, masks)[0];
  }

  protected feedForward(x: Tensor): Tensor {
    return this.linear2.call(this.dropout.call(this.activation(this.linear1.call(x))));
  }
}

/**
 * Self-attention and feed-forward, each with a sum and a LayerNorm. Source: Vaswani et al. 2017;
 * normFirst: Xiong et al. 2020.
 */
export class TransformerEncoderLayer extends TransformerLayer {
  /** The norm of the attention. */
  readonly norm1: LayerNorm;
  /** The norm of the MLP. */
  readonly norm2: LayerNorm;

  /** Throws DS_ARGUMENT for invalid sizes or options. */
  constructor(channels: number, heads: number, given: TransformerLayerOptions = {}) {
    const options = readOptions('TransformerEncoderLayer', given, namesOf.TransformerLayerOptions);
    super('TransformerEncoderLayer', channels, heads, options);
    this.norm1 = new LayerNorm(channels, options.layerNormEps);
    this.norm2 = new LayerNorm(channels, options.layerNormEps);
  }

  /** Maps src [T, B, C] (or batch first, or [T, C]) to the same shape. */
  override forward(src: Tensor, given: EncoderMasks = {}): Tensor {
    const { srcMask, srcKeyPaddingMask, isCausal } = readOptions(
      'encoder masks',
      given,
      namesOf.EncoderMasks,
    );
    const masks = { attnMask: srcMask, keyPaddingMask: srcKeyPaddingMask, isCausal };
    const mixed = this.residual(src, this.norm1, (x) => this.attendSelf(x, masks));
    return this.residual(mixed, this.norm2, (x) => this.feedForward(x));
  }
}

/**
 * Self-attention, attention to an encoder's output and feed-forward, each with a sum and a
 * LayerNorm.
 */
export class TransformerDecoderLayer extends TransformerLayer {
  /** Attention to the output of the encoder. */
  readonly multihead_attn: MultiheadAttention;
  /** The norm of the self-attention. */
  readonly norm1: LayerNorm;
  /** The norm of the attention to the encoder. */
  readonly norm2: LayerNorm;
  /** The norm of the MLP. */
  readonly norm3: LayerNorm;

  /** Throws DS_ARGUMENT for invalid sizes or options. */
  constructor(channels: number, heads: number, given: TransformerLayerOptions = {}) {
    const options = readOptions('TransformerDecoderLayer', given, namesOf.TransformerLayerOptions);
    super('TransformerDecoderLayer', channels, heads, options);
    const { dropout = 0.1, batchFirst, layerNormEps } = options;
    this.multihead_attn = new MultiheadAttention(channels, heads, { dropout, batchFirst });
    this.norm1 = new LayerNorm(channels, layerNormEps);
    this.norm2 = new LayerNorm(channels, layerNormEps);
    this.norm3 = new LayerNorm(channels, layerNormEps);
  }

  /**
   * Maps tgt [T, B, C] with memory [S, B, C] (or batch first, or without a batch) to the shape of
   * tgt.
   */
  override forward(tgt: Tensor, memory: Tensor, given: DecoderMasks = {}): Tensor {
    const masks = readOptions('decoder masks', given, namesOf.DecoderMasks);
    const selfMasks = {
      attnMask: masks.tgtMask,
      keyPaddingMask: masks.tgtKeyPaddingMask,
      isCausal: masks.tgtIsCausal,
    };
    const memoryMasks = {
      attnMask: masks.memoryMask,
      keyPaddingMask: masks.memoryKeyPaddingMask,
      isCausal: masks.memoryIsCausal,
    };
    const mixed = this.residual(tgt, this.norm1, (x) => this.attendSelf(x, selfMasks));
    const informed = this.residual(
      mixed,
      this.norm2,
      (x) => this.multihead_attn.call(x, memory, memory, memoryMasks)[0],
    );
    return this.residual(informed, this.norm3, (x) => this.feedForward(x));
  }
}

/** Options of TransformerEncoder and TransformerDecoder. */
export interface TransformerStackOptions {
  /** Applied after the last layer, for layers with normFirst. Default: none. */
  norm?: Module | null;
}

/** Returns `count` modules of `make`, which is called once for each. */
function createLayers<Layer extends Module>(op: string, make: unknown, count: number): Layer[] {
  requireInteger(`${op} layers`, count, 1);
  if (typeof make === 'function') return Array.from({ length: count }, () => make() as Layer);
  throw valueError(
    op,
    'a function that returns a layer',
    make,
    'Layers are not copied: pass () => new nn.TransformerEncoderLayer(...).',
  );
}

/** Consecutive encoder layers: "layers.0", ..., each a unit of ZeRO, and "norm". */
export class TransformerEncoder extends Module {
  /** First to last. */
  readonly layers: readonly TransformerEncoderLayer[];
  /** After the last layer; null: no norm. */
  readonly norm: Module | null;

  /**
   * Creates `count` layers by calls of `make`. Unlike PyTorch's copies, they have different initial
   * values. Throws DS_ARGUMENT for invalid sizes or options.
   */
  constructor(
    make: () => TransformerEncoderLayer,
    count: number,
    given: TransformerStackOptions = {},
  ) {
    super();
    const { norm } = readOptions('TransformerEncoder', given, namesOf.TransformerStackOptions);
    this.layers = createLayers('TransformerEncoder', make, count);
    this.norm = norm ?? null;
  }

  /** Calls the layers in order; every layer has the same masks. */
  override forward(src: Tensor, masks: EncoderMasks = {}): Tensor {
    const out = this.layers.reduce((x, layer) => layer.call(x, masks), src);
    return this.norm ? (this.norm.call(out) as Tensor) : out;
  }
}

/** Consecutive decoder layers: "layers.0", ..., each a unit of ZeRO, and "norm". */
export class TransformerDecoder extends Module {
  /** First to last. */
  readonly layers: readonly TransformerDecoderLayer[];
  /** After the last layer; null: no norm. */
  readonly norm: Module | null;

  /** See TransformerEncoder. Throws DS_ARGUMENT for invalid sizes or options. */
  constructor(
    make: () => TransformerDecoderLayer,
    count: number,
    given: TransformerStackOptions = {},
  ) {
    super();
    const { norm } = readOptions('TransformerDecoder', given, namesOf.TransformerStackOptions);
    this.layers = createLayers('TransformerDecoder', make, count);
    this.norm = norm ?? null;
  }

  /** Calls the layers in order; every layer has the same masks and the same memory. */
  override forward(tgt: Tensor, memory: Tensor, masks: DecoderMasks = {}): Tensor {
    const out = this.layers.reduce((x, layer) => layer.call(x, memory, masks), tgt);
    return this.norm ? (this.norm.call(out) as Tensor) : out;
  }
}

// Layers with PyTorch's parameter names, shapes and default initialisation.
import { DsError } from '../errors.js';
import { type OptionNames, readOptions } from '../runtime/options.js';
import { phrase } from '../runtime/phrase.js';
import { requireFinite, requireInteger } from '../runtime/require-number.js';
import { requireType } from '../runtime/require-type.js';
import { describe, numel } from '../runtime/view.js';
import {
  ones as constantOnes,
  dropout,
  embedding,
  layerNorm,
  linear,
  linearGelu,
  rmsNorm,
  scope,
  swiglu,
  type Tensor,
  where,
} from '../tensor/index.js';
import { type Initializer, normal, ones, uniform, zeros } from './initializers.js';
import {
  bringTogether,
  type Joinable,
  type Joining,
  type JoinsOthers,
  joinedGate,
  joiningOf,
} from './joined-linears.js';
import { Module } from './module.js';
import { Parameter } from './parameter.js';

/** Options of Linear. */
export interface LinearOptions {
  /** Default true. */
  bias?: boolean;
  /** Default U(-1/sqrt(in), 1/sqrt(in)), for weight and bias. */
  weightInit?: Initializer;
  /** First values of the bias. */
  biasInit?: Initializer;
}

const LINEAR: OptionNames<LinearOptions> = { bias: true, weightInit: true, biasInit: true };

/** x W^T + b with weight [out, in]. x [.., in] gives [.., out]. */
export class Linear extends Module implements JoinsOthers {
  /** [outputs, inputs]. */
  readonly weight: Parameter;
  /** [outputs]; null without one. */
  readonly bias: Parameter | null;

  /** Throws DS_ARGUMENT. */
  constructor(inputs: number, outputs: number, given: LinearOptions = {}) {
    super();
    const { name } = new.target;
    requireInteger(`${name} inputs`, inputs, 1);
    requireInteger(`${name} outputs`, outputs, 1);
    const options = readOptions(name, given, LINEAR);
    for (const init of ['weightInit', 'biasInit'] as const) {
      if (options[init] !== undefined) requireType(`${name} ${init}`, options[init], 'function');
    }
    const bound = 1 / Math.sqrt(inputs);
    this.weight = new Parameter([outputs, inputs], options.weightInit ?? uniform(bound));
    const withBias = requireType(`${name} bias`, options.bias ?? true, 'boolean');
    this.bias = withBias ? new Parameter([outputs], options.biasInit ?? uniform(bound)) : null;
  }

  /** [..., inputs] to [..., outputs]: x weight^T + bias. Throws DS_SHAPE. */
  override forward(x: Tensor): Tensor {
    return linear(x, this.weight, this.bias);
  }

  /** @internal See JoinsOthers. What follows a product is of a class of its own. */
  joining(): Joining | null {
    if (this.constructor !== Linear) return null;
    const { weight, bias } = this;
    return joiningOf(weight, bias);
  }
}

/** Linear followed by gelu_tanh, in one GEMM. */
export class LinearGelu extends Linear {
  /** [..., inputs] to [..., outputs]: gelu of the linear layer, fused. */
  override forward(x: Tensor): Tensor {
    return linearGelu(x, this.weight, this.bias);
  }
}

/** Options of Embedding. */
export interface EmbeddingOptions {
  /** Default N(0, 1). */
  init?: Initializer;
  /**
   * The index of padding: its row starts as zeros and gets no gradient. Negative ones count from
   * the end.
   */
  paddingIdx?: number;
}

const EMBEDDING: OptionNames<EmbeddingOptions> = { init: true, paddingIdx: true };

/** A table [V, C] of rows; indices [..] (i32 or i64) give [.., C]. Default N(0, 1). */
export class Embedding extends Module {
  /** [count, channels]. */
  readonly weight: Parameter;
  /** Null where no index is padding. */
  readonly paddingIdx: number | null;

  /** Options, or the initializer alone. Throws DS_ARGUMENT. */
  constructor(count: number, channels: number, given: Initializer | EmbeddingOptions = {}) {
    super();
    requireInteger('Embedding count', count, 1);
    requireInteger('Embedding channels', channels, 1);
    const options = typeof given === 'function' ? { init: given } : given;
    const { init = normal(1), paddingIdx } = readOptions('Embedding', options, EMBEDDING);
    this.paddingIdx = paddingIdx === undefined ? null : paddingRow(paddingIdx, count);
    this.weight = new Parameter([count, channels], this.startOf(init, channels));
  }

  /**
   * Whole numbers [...] to their rows [..., channels]. Throws DS_INDEX on the CPU for one outside.
   */
  override forward(index: Tensor): Tensor {
    const { weight, paddingIdx } = this;
    if (paddingIdx === null) return embedding(weight, index);
    return scope(() => {
      const rows = embedding(weight, index);
      return where(index.eq(paddingIdx).unsqueeze(-1), rows.detach(), rows);
    });
  }

  private startOf(init: Initializer, channels: number): Initializer {
    const { paddingIdx } = this;
    if (paddingIdx === null || typeof init !== 'function') return init;
    const blank = (out: Tensor, row: number): void => {
      const [rows, width] = out.shape as [number, number];
      if (row >= 0 && row < rows) zeros(out.alias([width], [1], out.offset + row * width));
    };
    const padded: Initializer = (out) => {
      init(out);
      blank(out, paddingIdx);
    };
    const { part } = init;
    if (part) {
      padded.part = (out, at) => {
        part(out, at);
        blank(out, paddingIdx - Math.floor(at.first / channels));
      };
    }
    return padded;
  }
}

function paddingRow(index: number, count: number): number {
  requireInteger('Embedding paddingIdx', index, -count);
  if (index < count) return index < 0 ? index + count : index;
  throw new DsError({
    code: 'DS_ARGUMENT',
    op: 'Embedding paddingIdx',
    expected: `an index below ${count}`,
    got: String(index),
  });
}

/** Normalises the last dim to mean 0 and variance 1, then weight and bias [C]. */
export class LayerNorm extends Module {
  /** [channels]. */
  readonly weight: Parameter;
  /** [channels]. */
  readonly bias: Parameter;

  constructor(
    channels: number,
    /** Added to the variance. */
    readonly eps = 1e-5,
  ) {
    super();
    requireInteger('LayerNorm channels', channels, 1);
    requireFinite('LayerNorm eps', eps, 0);
    this.weight = new Parameter([channels], ones);
    this.bias = new Parameter([channels], zeros);
  }

  /**
   * [..., channels] to the same shape, each row with mean 0 and variance 1 before weight and bias.
   */
  override forward(x: Tensor): Tensor {
    return layerNorm(x, this.weight, this.bias, this.eps);
  }
}

/** Normalises the last dim to root mean square 1, then weight [C]. */
export class RMSNorm extends Module {
  /** [channels]. */
  readonly weight: Parameter;

  constructor(
    channels: number,
    /** Added to the mean square. */
    readonly eps = 1e-5,
  ) {
    super();
    requireInteger('RMSNorm channels', channels, 1);
    requireFinite('RMSNorm eps', eps, 0);
    this.weight = new Parameter([channels], ones);
  }

  /** [..., channels] to the same shape, each row divided by its root mean square. */
  override forward(x: Tensor): Tensor {
    return rmsNorm(x, this.weight, this.eps);
  }
}

/** Options of GroupNorm. */
export interface GroupNormOptions {
  /** Added to the variance. Default 1e-5. */
  eps?: number;
  /** Whether there are a weight and a bias [C]. Default true. */
  affine?: boolean;
}

const GROUP_NORM: OptionNames<GroupNormOptions> = { eps: true, affine: true };

/**
 * Normalises each sample's channels in `groups`, with all that follows them, then weight and bias
 * [C]. x [N, C, ..]. Source: Wu & He 2018.
 */
export class GroupNorm extends Module {
  /** [channels]; null without affine. */
  readonly weight: Parameter | null;
  /** [channels]; null without affine. */
  readonly bias: Parameter | null;
  /** Added to the variance. */
  readonly eps: number;

  /** Throws DS_ARGUMENT, also where groups do not divide the channels. */
  constructor(
    /** Groups of channels that share a mean and a variance. */
    readonly groups: number,
    /** Channels of the input. */
    readonly channels: number,
    given: GroupNormOptions = {},
  ) {
    super();
    const { eps = 1e-5, affine = true } = readOptions('GroupNorm', given, GROUP_NORM);
    requireInteger('GroupNorm groups', groups, 1);
    requireInteger('GroupNorm channels', channels, 1);
    this.eps = requireFinite('GroupNorm eps', eps, 0);
    this.weight = affine ? new Parameter([channels], ones) : null;
    this.bias = affine ? new Parameter([channels], zeros) : null;
    if (channels % groups === 0) return;
    throw new DsError({
      code: 'DS_ARGUMENT',
      op: 'GroupNorm',
      expected: `groups that divide ${channels} channels`,
      got: String(groups),
    });
  }

  /** [B, channels, ...] to the same shape. Throws DS_SHAPE. */
  override forward(x: Tensor): Tensor {
    const { groups, channels, weight, bias, eps } = this;
    if (x.ndim < 2 || x.shape[1] !== channels) {
      throw new DsError({
        code: 'DS_SHAPE',
        op: 'GroupNorm',
        expected: `[N, ${channels}, ..]`,
        got: describe(x),
      });
    }
    return scope(() => {
      const rows = x.reshape([x.size(0), groups, numel(x.shape.slice(1)) / groups]);
      const one = constantOnes([rows.size(-1)], { dtype: x.dtype, device: x.device });
      const normed = layerNorm(rows, one, null, eps).reshape(x.shape);
      if (!weight || !bias) return normed;
      const shape = [channels, ...x.shape.slice(2).fill(1)];
      return normed.mul(weight.reshape(shape)).add(bias.reshape(shape));
    });
  }
}

/** Zeroes elements with probability `p` while training. */
export class Dropout extends Module {
  /** Throws DS_ARGUMENT. */
  constructor(
    /** Probability with which an element becomes 0, below 1. */
    readonly p = 0.5,
  ) {
    super();
    requireFinite('Dropout p', p, 0, 1);
  }

  /**
   * In training the input with elements dropped and the rest times 1 / (1 - p); else the input
   * itself.
   */
  override forward(x: Tensor): Tensor {
    return this.training ? dropout(x, this.p) : x;
  }
}

/** Zeroes whole features with probability `p` while training; one draw per sample and channel. */
abstract class FeatureDropout extends Module {
  protected constructor(
    private readonly op: string,
    readonly p: number,
    /** Dims of an input with samples, and whether one without them is taken. */
    private readonly ranks: readonly number[],
  ) {
    super();
    requireFinite(`${op} p`, p, 0, 1);
  }

  /** The leading dims that have a draw of their own. */
  protected abstract drawn(x: Tensor): number;

  override forward(x: Tensor): Tensor {
    if (!this.ranks.includes(x.ndim)) {
      const expected = `a tensor of ${this.ranks.join(' or ')} dims`;
      throw new DsError({ code: 'DS_SHAPE', op: this.op, expected, got: describe(x) });
    }
    if (!this.training || this.p === 0) return x;
    const lead = this.drawn(x);
    const shape = x.shape.map((size, d) => (d < lead ? size : 1));
    const { dtype, device } = x;
    return scope(() => x.mul(dropout(constantOnes(shape, { dtype, device }), this.p)));
  }
}

/** Drops whole channels of [N, C, T], or of [C, T] without samples. Source: Tompson et al. 2015. */
export class Dropout1d extends FeatureDropout {
  /** Throws DS_ARGUMENT. */
  constructor(p = 0.5) {
    super('Dropout1d', p, [2, 3]);
  }

  protected drawn(x: Tensor): number {
    return x.ndim - 1;
  }
}

/** Drops whole channels of [N, C, H, W], or of [N, C, T], as PyTorch's does. */
export class Dropout2d extends FeatureDropout {
  /** Throws DS_ARGUMENT. */
  constructor(p = 0.5) {
    super('Dropout2d', p, [3, 4]);
  }

  protected drawn(): number {
    return 2;
  }
}

/** Options of SwiGLU. */
export interface SwiGluOptions {
  /** Default false, as in Llama. */
  bias?: boolean;
}

/**
 * down_proj(silu(gate_proj x) * up_proj x): a gated feed-forward block with Llama's names. Source:
 * Shazeer 2020.
 */
export class SwiGLU extends Module implements Joinable {
  /** From channels to hidden, through SiLU. */
  readonly gate_proj: Linear;
  /** From channels to hidden, what the gate multiplies. */
  readonly up_proj: Linear;
  /** From hidden back to channels. */
  readonly down_proj: Linear;
  private isJoined = false;

  /** From [.., channels] over [.., hidden] to [.., channels]. Throws DS_ARGUMENT. */
  constructor(channels: number, hidden: number, given: SwiGluOptions = {}) {
    super();
    const { bias = false } = readOptions('SwiGLU', given, { bias: true });
    this.gate_proj = new Linear(channels, hidden, { bias });
    this.up_proj = new Linear(channels, hidden, { bias });
    this.down_proj = new Linear(hidden, channels, { bias });
  }

  /** [..., channels] to the same shape: down(silu(gate(x)) * up(x)). */
  override forward(x: Tensor): Tensor {
    const { gate_proj, up_proj } = this;
    const joined = this.isJoined ? joinedGate(x, [gate_proj, up_proj]) : null;
    return this.down_proj.call(joined ?? swiglu(gate_proj.call(x), up_proj.call(x)));
  }

  /** @internal See Joinable. */
  joinLinears(): void {
    this.isJoined = bringTogether([this.gate_proj, this.up_proj]);
  }
}

function requireLayer(layer: unknown, index: number): void {
  if (layer instanceof Module) return;
  throw new DsError({
    code: 'DS_ARGUMENT',
    op: `Sequential layer ${index}`,
    expected: 'a module',
    got: phrase(layer),
    hint: 'A function becomes one as the forward of a class that extends nn.Module; new makes one of a class.',
  });
}

/** Modules one after the other; their names are "0", "1", ... as in PyTorch. */
export class Sequential extends Module {
  private readonly layers: readonly Module[];

  /** Modules one after the other, or one list of them. Throws DS_ARGUMENT for what is no module. */
  constructor(...layers: readonly Module[] | readonly [readonly Module[]]) {
    super();
    const [first] = layers;
    const list = layers.length === 1 && Array.isArray(first) ? first : layers;
    for (const [i, layer] of list.entries()) requireLayer(layer, i);
    this.layers = list as readonly Module[];
  }

  protected override *fields(): Generator<[string, Module]> {
    for (const [i, layer] of this.layers.entries()) yield [String(i), layer];
  }

  /** The modules in order, as checkpointSequential() takes them. */
  [Symbol.iterator](): Iterator<Module> {
    return this.layers[Symbol.iterator]();
  }

  /** The input through every module, first to last. */
  override forward(x: Tensor): Tensor {
    let out = x;
    for (const layer of this.layers) out = layer.call(out) as Tensor;
    return out;
  }
}

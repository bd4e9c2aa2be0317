// Linear layers, and the gated feed-forward block of three linear layers.
import { namesOf, readOptions } from '../runtime/options.js';
import { requireInteger } from '../runtime/require-number.js';
import { requireType } from '../runtime/require-type.js';
import { gelu, linear, linearGelu, swiglu, type Tensor } from '../tensor/index.js';
import { type Fp8Recipe, fp8Linear, shareCasts } from '../tensor/ops/fp8-linear.js';
import { areGradientsJoint, gatedProjection } from '../tensor/ops/joint-gradients.js';
import { type Initializer, uniform } from './initializers.js';
import {
  type Joinable,
  type JoinableLinear,
  type JointProduct,
  joinedGate,
  joiningOf,
  joinMemory,
} from './joined-linears.js';
import { Module } from './module.js';
import { Parameter } from './parameter.js';

/** Options of Linear. */
export interface LinearOptions {
  /** Whether the layer has a bias. Default: true. */
  bias?: boolean;
  /** Initializer of the weights. Default: U(-1/sqrt(in), 1/sqrt(in)), for weight and bias. */
  weightInit?: Initializer;
  /** Initializer of the bias. */
  biasInit?: Initializer;
}

/** A linear layer x W^T + b with weight [out, in]. x [.., in] gives [.., out]. */
export class Linear extends Module implements JoinableLinear {
  /** The weight [outputs, inputs]. */
  readonly weight: Parameter;
  /** The bias [outputs]; null without one. */
  readonly bias: Parameter | null;
  /** @internal The recipe of FP8 products; null: products in the weight's dtype. */
  fp8: Fp8Recipe | null = null;

  /** Throws DS_ARGUMENT for invalid sizes or options. */
  constructor(inputs: number, outputs: number, given: LinearOptions = {}) {
    super();
    const { name } = new.target;
    requireInteger(`${name} inputs`, inputs, 1);
    requireInteger(`${name} outputs`, outputs, 1);
    const options = readOptions(name, given, namesOf.LinearOptions);
    for (const init of ['weightInit', 'biasInit'] as const) {
      if (options[init] !== undefined) requireType(`${name} ${init}`, options[init], 'function');
    }
    const bound = 1 / Math.sqrt(inputs);
    this.weight = new Parameter([outputs, inputs], options.weightInit ?? uniform(bound));
    const { bias = true } = options;
    this.bias = bias ? new Parameter([outputs], options.biasInit ?? uniform(bound)) : null;
  }

  /**
   * Maps [..., inputs] to [..., outputs]: x weight^T + bias. Throws DS_SHAPE if x has other sizes.
   */
  override forward(x: Tensor): Tensor {
    return this.project(x);
  }

  /** @internal Computes the layer without its activation. A null `bias` omits the bias. */
  project(x: Tensor, bias: Tensor | null = this.bias): Tensor {
    const { weight, fp8 } = this;
    return fp8 ? fp8Linear(x, weight, bias, fp8) : linear(x, weight, bias);
  }

  /** @internal Whether the layer computes x weight^T by linear() and nothing else. */
  get isPlainProduct(): boolean {
    return this.constructor === Linear && !this.isHooked && !this.bias && !this.fp8;
  }

  /**
   * @internal See JoinableLinear. Subclasses add operations after the product, so they are not
   * joined.
   */
  joining(): JointProduct | null {
    if (this.constructor !== Linear) return null;
    const { weight, bias } = this;
    return joiningOf(weight, bias);
  }
}

/** Linear followed by gelu_tanh, in one GEMM. */
export class LinearGelu extends Linear {
  /** Maps [..., inputs] to [..., outputs]: gelu of the linear layer, fused. */
  override forward(x: Tensor): Tensor {
    return this.fp8 ? gelu(this.project(x), 'tanh') : linearGelu(x, this.weight, this.bias);
  }
}

/** Options of SwiGLU. */
export interface SwiGluOptions {
  /** Whether the layer has a bias. Default: false, as in Llama. */
  bias?: boolean;
}

/**
 * A gated feed-forward block with Llama's names: down_proj(silu(gate_proj x) * up_proj x). Source:
 * Shazeer 2020.
 */
export class SwiGLU extends Module implements Joinable {
  /** Maps channels to hidden, through SiLU. */
  readonly gate_proj: Linear;
  /** From channels to hidden: the factor of the gate. */
  readonly up_proj: Linear;
  /** Maps hidden back to channels. */
  readonly down_proj: Linear;
  private isJoined = false;

  /**
   * From [.., channels] through [.., hidden] to [.., channels]. Throws DS_ARGUMENT for invalid
   * sizes or options.
   */
  constructor(channels: number, hidden: number, given: SwiGluOptions = {}) {
    super();
    const { bias = false } = readOptions('SwiGLU', given, namesOf.SwiGluOptions);
    this.gate_proj = new Linear(channels, hidden, { bias });
    this.up_proj = new Linear(channels, hidden, { bias });
    this.down_proj = new Linear(hidden, channels, { bias });
  }

  /** Maps [..., channels] to the same shape: down(silu(gate(x)) * up(x)). */
  override forward(x: Tensor): Tensor {
    const { gate_proj, up_proj } = this;
    const joined = this.isJoined ? joinedGate(x, [gate_proj, up_proj]) : null;
    if (joined) return this.down_proj.call(joined);
    if (areGradientsJoint(x) && gate_proj.isPlainProduct && up_proj.isPlainProduct) {
      return this.down_proj.call(gatedProjection(x, gate_proj.weight, up_proj.weight));
    }
    const [gate, up] = shareCasts(x, () => [gate_proj.call(x), up_proj.call(x)] as const);
    return this.down_proj.call(swiglu(gate, up));
  }

  /** @internal See Joinable. */
  joinLinears(): void {
    this.isJoined = joinMemory([this.gate_proj, this.up_proj]);
  }
}

// The feed-forward blocks of families: gated, packed, or two layers without a gate.

import { SparseMixture } from '../../nn/experts.js';
import { normal, zeros } from '../../nn/initializers.js';
import { type Joinable, joinedLinear, joinMemory } from '../../nn/joined-linears.js';
import { Linear, SwiGLU } from '../../nn/linear.js';
import { Module } from '../../nn/module.js';
import { leading } from '../../runtime/required.js';
import { gelu, relu, silu, swiglu, type Tensor } from '../../tensor/index.js';
import { shareCasts } from '../../tensor/ops/fp8-linear.js';
import { scaleBranch } from '../layer-factors.js';
import type { BodySizes } from './config.js';
import { PackedSwiGLU } from './packed-swiglu.js';
import { sparsify } from './sparse-gate.js';
import type { Activation, PlainNames, RotaryTraits } from './traits.js';
import { Xielu } from './xielu.js';

/** The functions inside of feed-forward blocks. */
export const ACTIVATIONS: Readonly<Record<Activation, (x: Tensor) => Tensor>> = {
  relu,
  silu,
  relu2: (x) => {
    const positive = relu(x);
    return positive.mul(positive);
  },
  gelu: (x) => gelu(x, 'none'),
  geluTanh: (x) => gelu(x, 'tanh'),
};

/** Multiplies `up` by the activation of `gate`; all are [.., hidden]. */
type GateProduct = (gate: Tensor, up: Tensor) => Tensor;

/** `zeroShare`: the part of the gate's values that becomes 0 before the activation. */
function gateProduct(kind: Activation, zeroShare: number): GateProduct {
  if (kind === 'silu' && zeroShare === 0) return swiglu;
  const activate = ACTIVATIONS[kind];
  if (zeroShare === 0) return (gate, up) => activate(gate).mul(up);
  return (gate, up) => activate(sparsify(gate, zeroShare)).mul(up);
}

/**
 * A gated feed-forward block: down_proj(activation(gate_proj x) * up_proj x), under Llama's names.
 * Source: Shazeer 2020.
 */
export class GatedMlp extends Module implements Joinable {
  /** Maps channels to hidden, through the activation. */
  readonly gate_proj: Linear;
  /** From channels to hidden: the factor of the gate. */
  readonly up_proj: Linear;
  /** Maps hidden back to channels. */
  readonly down_proj: Linear;
  private isJoined = false;

  /** `hidden` is the width of the gate. */
  constructor(
    channels: number,
    hidden: number,
    {
      bias,
      gated,
      factors = [1, 1],
    }: { bias: boolean; gated: GateProduct; factors?: readonly number[] },
  ) {
    super();
    this.gate_proj = new Linear(channels, hidden, { bias });
    this.up_proj = new Linear(channels, hidden, { bias });
    this.down_proj = new Linear(hidden, channels, { bias });
    this.gated = gated;
    this.factors = factors;
  }

  private readonly gated: GateProduct;
  /** Of the gate, and of the result. */
  private readonly factors: readonly number[];

  /** Maps [.., channels] to the same shape. */
  override forward(x: Tensor): Tensor {
    const { gate_proj, up_proj } = this;
    const joined = this.isJoined ? joinedLinear(x, [gate_proj, up_proj]) : null;
    const [gate, up] = leading(
      joined ?? shareCasts(x, () => [gate_proj.call(x), up_proj.call(x)]),
      2,
    );
    const [ofGate = 1, ofResult = 1] = this.factors;
    const inner = this.gated(scaleBranch(gate, ofGate), up);
    return scaleBranch(this.down_proj.call(inner), ofResult);
  }

  /** @internal See Joinable. */
  joinLinears(): void {
    this.isJoined = joinMemory([this.gate_proj, this.up_proj]);
  }
}

/**
 * A feed-forward block without a gate: second(activation(first x)); the family names both layers.
 */
export class PlainMlp extends Module {
  readonly #names: PlainNames;
  readonly #activation: (x: Tensor) => Tensor;

  /** `hidden` is the width between both layers. */
  constructor(
    channels: number,
    hidden: number,
    given: { bias: boolean; activation: Activation | 'xielu'; names: PlainNames },
  ) {
    super();
    const { bias, names, activation } = given;
    this.#names = names;
    const first = new Linear(channels, hidden, { bias });
    Object.assign(this, { [names.first]: first });
    Object.assign(this, { [names.second]: new Linear(hidden, channels, { bias }) });
    if (activation !== 'xielu') {
      this.#activation = ACTIVATIONS[activation];
      return;
    }
    const xielu = new Xielu();
    Object.assign(this, { act_fn: xielu });
    this.#activation = (x) => xielu.call(x);
  }

  /** Maps [.., channels] to the same shape. */
  override forward(x: Tensor): Tensor {
    const layers = this as unknown as Record<string, Module>;
    const inner = (layers[this.#names.first] as Linear).call(x);
    return (layers[this.#names.second] as Linear).call(this.#activation(inner));
  }
}

/** The feed-forward block of a layer. */
export type FeedForward = SwiGLU | PackedSwiGLU | GatedMlp | PlainMlp | SparseMixture;

/** Names in blocks without a gate. Only families with such blocks have plain shared experts. */
const plainNames = ({ feed }: RotaryTraits): PlainNames =>
  typeof feed === 'object' ? feed : { first: 'up_proj', second: 'down_proj' };

/** Makes the feed-forward block of a layer. */
export function createFeedForward(body: BodySizes, layer: number): FeedForward {
  const { channels, hidden, mlpBias: bias, moe, initializerRange, traits, multipliers } = body;
  const { feed = traits.packed ? 'packed' : 'gated', activation: { kind } = { kind: 'silu' } } =
    traits;
  if (!moe || traits.moe?.beside || moe.denseLayers.includes(layer)) {
    if (feed === 'packed') return new PackedSwiGLU(channels, hidden, { bias });
    if (feed !== 'gated') {
      return new PlainMlp(channels, hidden, { bias, activation: kind, names: feed });
    }
    if (kind === 'silu' && !multipliers) return new SwiGLU(channels, hidden, { bias });
    // Only blocks without a gate have the other one.
    const zeroShare = body.altUp?.sparsity[layer] ?? 0;
    const gated = gateProduct(kind as Activation, zeroShare);
    const factors = multipliers?.feed;
    return new GatedMlp(channels, hidden, { bias, gated, ...(factors && { factors }) });
  }
  const { experts, perToken: k, normalize, sharedHidden, latentDim } = moe;
  const { limit = null, routerBias = false, shared, scores, choiceBias } = traits.moe ?? {};
  const { activation } = traits.moe ?? {};
  const { sparseMixer = null, inputsFirst = limit !== null, scalesInputs } = traits.moe ?? {};
  const { groups, keptGroups, scale } = moe;
  const isOwn = shared === 'joined' || shared === 'plain';
  const options = {
    k,
    normalize,
    sharedHidden: isOwn ? null : sharedHidden,
    latentDim,
    ...(activation && { activation }),
    limit,
    inputsFirst,
    bias: routerBias,
    sharedGate: shared === true,
    sparseMixer,
    routing: scores
      ? {
          ...{ scores, groups, keptGroups, scale },
          ...(choiceBias !== undefined && { choiceBias }),
          ...(scalesInputs && { scalesInputs }),
        }
      : null,
  };
  const mixture = new SparseMixture(channels, moe.hidden, experts, options);
  if (isOwn && sharedHidden) {
    const own =
      shared === 'joined'
        ? new PackedSwiGLU(channels, sharedHidden, { bias: false })
        : new PlainMlp(channels, sharedHidden, {
            bias,
            activation: kind,
            names: plainNames(traits),
          });
    Object.assign(mixture, { shared_experts: own });
  }
  for (const [name, parameter] of mixture.namedParameters()) {
    parameter.initialize(name.endsWith('bias') ? zeros : normal(initializerRange));
  }
  return mixture;
}

// Mixtures of experts: a router sends each token to a few of many feed-forward blocks. Sources:
// Shazeer et al. 2017; Fedus et al. 2022 (Switch Transformer) for the loss; no token is dropped.

import { valueError } from '../runtime/input-errors.js';
import { namesOf, readOptions } from '../runtime/options.js';
import { requireFinite, requireInteger } from '../runtime/require-number.js';
import { requireType } from '../runtime/require-type.js';
import { required } from '../runtime/required.js';
import {
  type ComputedWeight,
  clamp,
  combineRows,
  embedding,
  gelu,
  groupedFrozen,
  groupedLinear,
  groupedProduct,
  groupOfRows,
  groupRows,
  ones,
  type Routes,
  type RowGroups,
  relu,
  scope,
  stack,
  swiglu,
  type Tensor,
} from '../tensor/index.js';
import { type Initializer, uniform, zeros } from './initializers.js';
import { Linear, SwiGLU } from './linear.js';
import { Module } from './module.js';
import { Parameter } from './parameter.js';
import {
  GroupRouter,
  type GroupRouting,
  type RouterLoads,
  SparseMixerRouter,
  type TokenRouter,
  TopKRouter,
  type TopKRouterOptions,
} from './routers.js';

/**
 * Returns experts sum_e f_e p_e, a scalar f32. f_e is the number of choices of expert e per token
 * of each layer, p_e its mean probability. It is k if all experts get the same load, and 0 without
 * tokens. Source: Fedus et al. 2022, eq. 4 to 6, over all layers together as transformers'
 * load_balancing_loss_func. Throws DS_ARGUMENT unless `loads` are routing statistics and `tokens`
 * is an integer from 0.
 */
export function loadBalancingLoss(loads: RouterLoads, tokens: number): Tensor {
  if (!Array.isArray(loads?.layers)) {
    throw valueError('loadBalancingLoss', 'routing statistics, { layers, mask }', loads);
  }
  const { layers, mask } = loads;
  if (!mask) requireInteger('loadBalancingLoss tokens', tokens, 0);
  return scope(() => {
    const total = layers.length === 1 ? required(layers[0]) : stack(layers).sum(0);
    // Without counted tokens, the numerator is 0: clamp(1) only prevents 0 / 0.
    const means = mask
      ? total.div(mask.sum().clamp(1).mul(layers.length))
      : total.div(Math.max(1, tokens) * layers.length);
    const product = means.select(0, 0).detach().mul(means.select(0, 1));
    return product.sum().mul(total.size(1));
  });
}

/** The function inside of experts. */
export type ExpertActivation = 'silu' | 'geluTanh' | 'relu2';

/** Options of Experts. */
export interface ExpertsOptions {
  /** Initializer of the weights. Default: U(-1/sqrt(in), 1/sqrt(in)) of each matrix. */
  weightInit?: Initializer;
  /**
   * Experts with biases and bounded values, as in gpt-oss: (up + 1) gate sigmoid(1.702 gate), with
   * gate at most this limit and up within it on both sides. Default: null, silu(gate) up.
   */
  limit?: number | null;
  /**
   * The function of the gate: "silu", or "geluTanh", GELU's approximation by tanh. "relu2":
   * relu(up)^2, without a gate. Default: "silu".
   */
  activation?: ExpertActivation;
  /** Whether matrices are stored as [in, out]. Default: only with a limit. */
  inputsFirst?: boolean;
}

/**
 * Feed-forward blocks of several experts, with gates except for "relu2". With a limit, gate and up
 * alternate.
 */
export class Experts extends Module {
  /**
   * Gate and up projections: [experts, 2 hidden, channels], or the transpose. Without a gate, up
   * projections: [experts, hidden, channels].
   */
  readonly gate_up_proj: Parameter;
  /** Biases of gate and up [experts, 2 hidden] with a limit; null without. */
  readonly gate_up_proj_bias: Parameter | null;
  /** Output matrices [experts, channels, hidden], or the transpose. */
  readonly down_proj: Parameter;
  /** Biases of the output [experts, channels] with a limit; null without. */
  readonly down_proj_bias: Parameter | null;
  /** Bound of gate and up; null: unbounded, without biases. */
  readonly limit: number | null;
  /** The function inside. */
  readonly activation: ExpertActivation;
  /** Whether matrices are stored as [in, out]. */
  readonly inputsFirst: boolean;

  /**
   * Each expert maps channels to hidden and back. Throws DS_ARGUMENT for invalid sizes or options.
   */
  constructor(count: number, channels: number, hidden: number, given: ExpertsOptions = {}) {
    super();
    requireInteger('Experts count', count, 1);
    requireInteger('Experts channels', channels, 1);
    requireInteger('Experts hidden', hidden, 1);
    const {
      weightInit,
      limit = null,
      activation = 'silu',
      inputsFirst = limit !== null,
    } = readOptions('Experts', given, namesOf.ExpertsOptions);
    const activations = limit === null ? ['silu', 'geluTanh', 'relu2'] : ['silu', 'geluTanh'];
    if (!activations.includes(activation)) {
      const names = activations.map((name) => `"${name}"`).join(' or ');
      throw valueError('Experts activation', names, activation);
    }
    this.activation = activation;
    const init = (inputs: number): Initializer => weightInit ?? uniform(1 / Math.sqrt(inputs));
    this.limit = limit === null ? null : requireFinite('Experts limit', limit, Number.MIN_VALUE);
    this.inputsFirst = requireType('Experts inputsFirst', inputsFirst, 'boolean');
    const isBounded = this.limit !== null;
    const matrix = (outputs: number, inputs: number): Parameter =>
      new Parameter(
        [count, ...(inputsFirst ? [inputs, outputs] : [outputs, inputs])],
        init(inputs),
      );
    const bias = (outputs: number): Parameter | null =>
      isBounded ? new Parameter([count, outputs], zeros) : null;
    const inner = activation === 'relu2' ? hidden : 2 * hidden;
    this.gate_up_proj = matrix(inner, channels);
    this.gate_up_proj_bias = bias(inner);
    this.down_proj = matrix(channels, hidden);
    this.down_proj_bias = bias(channels);
  }

  /**
   * Maps x [.., channels] to the same shape, by the experts that `router` selects for each token.
   * The router reads `routed` if given, else x.
   */
  override forward(
    x: Tensor,
    router: TokenRouter,
    loads: RouterLoads | null = null,
    routed: Tensor | null = null,
  ): Tensor {
    return callExperts(this, x, router, { loads, routed });
  }
}

/** @internal Returns the forward pass of all experts, with the updates of adapters. */
export const callExperts = (
  experts: ExpertWeights,
  x: Tensor,
  router: TokenRouter,
  { loads, routed }: { loads: RouterLoads | null; routed: Tensor | null },
  updates: ExpertUpdates = {},
): Tensor =>
  scope(() => {
    const tokens = x.reshape([-1, x.size(-1)]);
    const routes = router.call(routed?.reshape([-1, routed.size(-1)]) ?? tokens, loads);
    return runExperts(experts, tokens, routes, null, updates).reshape(x.shape);
  });

/**
 * @internal Returns an adapter's part of a product. Rows are sorted by expert; with `isGathered`,
 * `rows` are the tokens, unsorted.
 */
export type ExpertUpdate = (rows: Tensor, groups: RowGroups, isGathered: boolean) => Tensor;

/** @internal The updates of the two matrices. */
type ExpertUpdates = Readonly<Partial<Record<'gate_up_proj' | 'down_proj', ExpertUpdate>>>;

/**
 * @internal Processes tokens [T, channels] by experts; with `first`, only the experts from `first`
 * on.
 */
export function runExperts(
  experts: ExpertWeights,
  tokens: Tensor,
  routes: Routes,
  first: number | null,
  updates: ExpertUpdates = {},
): Tensor {
  const { ids, weights } = routes;
  const { gate_up_proj, down_proj, limit, inputsFirst } = experts;
  if (routes.scalesInputs) return runScaledInputs(experts, tokens, routes, first, updates);
  const groups = groupRows(ids, required(gate_up_proj.shape[0]), first);
  if (limit !== null) {
    return combineRows(runBoundedExperts(experts, tokens, groups, limit, updates), weights, groups);
  }
  const gateAndUp = inputsFirst
    ? multiplyTransposed(gatherTokens(tokens, groups), gate_up_proj, groups)
    : multiplyExperts(tokens, gate_up_proj, groups, true);
  const inner = addUpdate(gateAndUp, updates.gate_up_proj?.(tokens, groups, true));
  const hidden = ACTIVATIONS[experts.activation](inner);
  const multiply = inputsFirst ? multiplyTransposed : multiplyExperts;
  const out = multiply(hidden, down_proj, groups);
  return combineRows(addUpdate(out, updates.down_proj?.(hidden, groups, false)), weights, groups);
}

/** Returns the token of each row; a row after the last group has the first token. */
const gatherTokens = (tokens: Tensor, { rows }: RowGroups): Tensor =>
  embedding(tokens, clamp(rows, { min: 0 }));

/** Runs experts on tokens times their weights; sums the results of each token. Source: Llama 4. */
function runScaledInputs(
  experts: ExpertWeights,
  tokens: Tensor,
  { ids, weights }: Routes,
  first: number | null,
  updates: ExpertUpdates,
): Tensor {
  const [T, k] = [ids.size(0), ids.size(1)];
  const factors = weights.to(tokens.dtype).unsqueeze(2);
  const scaled = tokens
    .unsqueeze(1)
    .mul(factors)
    .reshape([T * k, -1]);
  const unit = ones([T * k, 1], { dtype: weights.dtype, device: weights.device });
  const routes = { ids: ids.reshape([T * k, 1]), weights: unit };
  const out = runExperts(experts, scaled, routes, first, updates);
  return k === 1 ? out : out.reshape([T, k, -1]).sum(1);
}

/** Returns GELU of the first half of the channels, times the second half. */
function applyGeluGate(gateAndUp: Tensor): Tensor {
  const [gate, up] = gateAndUp.split(gateAndUp.size(1) / 2, 1) as [Tensor, Tensor];
  return gelu(gate, 'tanh').mul(up);
}

/** Returns relu(up)^2. */
function applySquaredRelu(up: Tensor): Tensor {
  const positive = relu(up);
  return positive.mul(positive);
}

const ACTIVATIONS: Readonly<Record<ExpertActivation, (inner: Tensor) => Tensor>> = {
  silu: (gateAndUp) => swiglu(gateAndUp),
  geluTanh: applyGeluGate,
  relu2: applySquaredRelu,
};

const addUpdate = (product: Tensor, update: Tensor | undefined): Tensor =>
  update ? product.add(update) : product;

/** @internal The parameters of all experts, or of the experts of one rank. */
interface ExpertWeights
  extends Pick<
    Experts,
    'gate_up_proj_bias' | 'down_proj_bias' | 'limit' | 'activation' | 'inputsFirst'
  > {
  /** See Experts; a frozen matrix may be computed. */
  readonly gate_up_proj: Parameter | ComputedWeight;
  readonly down_proj: Parameter | ComputedWeight;
}

/** Returns the products of a matrix [out, in]. */
const multiplyExperts = (
  x: Tensor,
  weight: Parameter | ComputedWeight,
  groups: RowGroups,
  isGathered = false,
): Tensor =>
  weight instanceof Parameter
    ? groupedLinear(x, weight, groups, isGathered)
    : groupedFrozen(x, weight, groups, { isGathered, isPlain: false });

/** Returns the products of a matrix [in, out]. */
const multiplyTransposed = (
  x: Tensor,
  weight: Parameter | ComputedWeight,
  groups: RowGroups,
): Tensor =>
  weight instanceof Parameter
    ? groupedProduct(x, weight, groups)
    : groupedFrozen(x, weight, groups, { isGathered: false, isPlain: true });

/** Factor of the gate inside the sigmoid. Source: OpenAI's gpt-oss. */
const GATE_SLOPE = 1.702;

/** Returns the outputs of experts with a limit, row by row. */
function runBoundedExperts(
  experts: ExpertWeights,
  tokens: Tensor,
  groups: RowGroups,
  limit: number,
  updates: ExpertUpdates,
): Tensor {
  const expert = groupOfRows(groups);
  const addBias = (x: Tensor, bias: Parameter | null): Tensor =>
    x.add(embedding(required(bias), expert));
  const rows = gatherTokens(tokens, groups);
  const multiply = experts.inputsFirst ? multiplyTransposed : multiplyExperts;
  const products = multiply(rows, experts.gate_up_proj, groups);
  const sum = addUpdate(products, updates.gate_up_proj?.(rows, groups, false));
  const gateAndUp = addBias(sum, experts.gate_up_proj_bias);
  const pairs = gateAndUp.reshape([gateAndUp.size(0), -1, 2]);
  const gate = clamp(pairs.select(2, 0), { max: limit });
  const up = clamp(pairs.select(2, 1), { min: -limit, max: limit });
  const hidden = gate.mul(gate.mul(GATE_SLOPE).sigmoid()).mul(up.add(1));
  const out = multiply(hidden, experts.down_proj, groups);
  return addBias(
    addUpdate(out, updates.down_proj?.(hidden, groups, false)),
    experts.down_proj_bias,
  );
}

/** Options of SparseMixture. */
export interface SparseMixtureOptions extends TopKRouterOptions {
  /** See ExpertsOptions. */
  limit?: number | null;
  /** See ExpertsOptions. */
  inputsFirst?: boolean;
  /** See ExpertsOptions. */
  activation?: ExpertActivation;
  /**
   * Width of the experts' inputs and outputs. fc1_latent_proj projects the channels to it, and
   * fc2_latent_proj projects it back. Default: null, the channels without a projection.
   */
  latentDim?: number | null;
  /** Whether a gate scales the output of the shared expert. Default: true. */
  sharedGate?: boolean;
  /** Scores of another kind than TopKRouter's. Default: null. */
  routing?: GroupRouting | null;
  /** The jitter of a SparseMixerRouter, in place of TopKRouter. Default: null. */
  sparseMixer?: number | null;
  /** Hidden width of the shared expert, which processes every token. Default: no shared expert. */
  sharedHidden?: number | null;
}

/**
 * A feed-forward block of many experts; each token goes to k of them. The output of a shared expert
 * is scaled by sigmoid(shared_expert_gate(x)). Modules have the names of transformers' sparse
 * blocks.
 */
export class SparseMixture extends Module {
  /** Routes tokens to experts. */
  readonly gate: TopKRouter;
  /** The experts. */
  readonly experts: Experts;
  /** The shared expert with a gate, which processes every token; null without it. */
  readonly shared_expert: SwiGLU | null;
  /** From channels to the gate logit of the shared expert; null without it. */
  readonly shared_expert_gate: Linear | null;
  /** The shared expert without a gate; null without it. */
  readonly shared_experts: SwiGLU | null;
  /** From channels to the width of experts; null if they have the channels. */
  readonly fc1_latent_proj: Linear | null;
  /** From the width of experts to channels; null if they have the channels. */
  readonly fc2_latent_proj: Linear | null;

  /** Throws DS_ARGUMENT for invalid sizes or options. */
  constructor(channels: number, hidden: number, experts: number, given: SparseMixtureOptions = {}) {
    super();
    const options = readOptions('SparseMixture', given, namesOf.SparseMixtureOptions);
    const { sharedHidden, limit = null, sharedGate = true, routing = null, ...rest } = options;
    const { sparseMixer = null, inputsFirst = limit !== null, activation, ...others } = rest;
    const { latentDim = null, ...router } = others;
    const { weightInit } = router;
    this.gate = routing
      ? new GroupRouter(channels, experts, routing, router)
      : sparseMixer === null
        ? new TopKRouter(channels, experts, router)
        : new SparseMixerRouter(channels, experts, sparseMixer, router);
    const own = {
      limit,
      inputsFirst,
      ...(activation && { activation }),
      ...(weightInit && { weightInit }),
    };
    const width = latentDim ?? channels;
    this.experts = new Experts(experts, width, hidden, own);
    const project = (from: number, to: number): Linear | null =>
      latentDim === null ? null : new Linear(from, to, { bias: false });
    this.fc1_latent_proj = project(channels, width);
    this.fc2_latent_proj = project(width, channels);
    const shared = sharedHidden ? new SwiGLU(channels, sharedHidden) : null;
    this.shared_expert = sharedGate ? shared : null;
    this.shared_expert_gate = this.shared_expert ? new Linear(channels, 1, { bias: false }) : null;
    this.shared_experts = sharedGate ? null : shared;
  }

  /** Maps [.., channels] to the same shape. Adds routing statistics to `loads` if given. */
  override forward(x: Tensor, loads: RouterLoads | null = null): Tensor {
    const { shared_expert: shared, shared_expert_gate: part, shared_experts: ungated } = this;
    if (ungated) return scope(() => this.runRouted(x, loads).add(ungated.call(x)));
    if (!shared || !part) return this.runRouted(x, loads);
    return scope(() => {
      const all = shared.call(x).mul(part.call(x).sigmoid());
      return this.runRouted(x, loads).add(all);
    });
  }

  private runRouted(x: Tensor, loads: RouterLoads | null): Tensor {
    const { gate, experts, fc1_latent_proj: enter, fc2_latent_proj: leave } = this;
    if (!enter || !leave) return experts.call(x, gate, loads);
    return scope(() => leave.call(experts.call(enter.call(x), gate, loads, x)));
  }
}

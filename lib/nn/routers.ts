// Routers of mixtures of experts: they choose a few experts for each token, and their weights.

import type { DsError } from '../errors.js';
import { argumentError, valueError } from '../runtime/input-errors.js';
import * as kernels from '../runtime/kernels.generated.js';
import { namesOf, readOptions } from '../runtime/options.js';
import { requireFinite, requireInteger } from '../runtime/require-number.js';
import { requireType } from '../runtime/require-type.js';
import { required } from '../runtime/required.js';
import {
  choicesOf,
  concat,
  gather,
  isBatchInvariant,
  isGradEnabled,
  linear,
  type Routes,
  routeTopK,
  scatter,
  scope,
  sigmoid,
  softmax,
  stack,
  Tensor,
  topk,
  where,
  zeros as zerosOf,
} from '../tensor/index.js';
import { type Initializer, uniform, zeros } from './initializers.js';
import { Module } from './module.js';
import { Parameter } from './parameter.js';

/** Routing statistics of one forward, layer by layer, for loadBalancingLoss(). */
export interface RouterLoads {
  /** For each token, [T] f32: 1, or 0 for padding, which does not count; null: all count. */
  readonly mask: Tensor | null;
  /**
   * By layer [2, experts] f32: the number of choices per expert, and the sum of their
   * probabilities.
   */
  readonly layers: Tensor[];
}

/** A module that routes tokens [T, channels] to experts; see TopKRouter. */
export interface TokenRouter {
  /** Returns ids and weights, [T, k] each. */
  call(x: Tensor, loads?: RouterLoads | null, counts?: boolean): Routes;
}

/** Options of TopKRouter. */
export interface TopKRouterOptions {
  /** Experts per token. Default: 2. */
  k?: number;
  /** Whether the weights of a token's experts add up to 1. Default: true. */
  normalize?: boolean;
  /** Initializer of the weights. Default: U(-1/sqrt(channels), 1/sqrt(channels)). */
  weightInit?: Initializer;
  /** Whether the logits have a bias. Default: false. */
  bias?: boolean;
}

/**
 * Sends each token to the k experts with the largest logits; see routeTopK(). Its weight does not
 * belong to a linear layer: it is neither quantized nor gets an adapter.
 */
export class TopKRouter extends Module {
  /** The weight [experts, channels]. */
  readonly weight: Parameter;
  /** The bias [experts]; null without a bias. */
  readonly bias: Parameter | null;
  /** Experts per token. */
  readonly k: number;
  /** Whether the weights of a token's experts add up to 1. */
  readonly normalize: boolean;

  /** Throws DS_ARGUMENT for invalid sizes or options. */
  constructor(channels: number, experts: number, given: TopKRouterOptions = {}) {
    super();
    requireInteger('TopKRouter channels', channels, 1);
    requireInteger('TopKRouter experts', experts, 1);
    const options = readOptions('TopKRouter', given, namesOf.TopKRouterOptions);
    const { k = 2, normalize = true, bias = false, weightInit } = options;
    this.k = requireInteger('TopKRouter k', k, 1);
    if (this.k > experts || experts > 512) throw tooManyError(this.k, experts);
    this.normalize = normalize;
    const init = weightInit ?? uniform(1 / Math.sqrt(channels));
    this.weight = new Parameter([experts, channels], init);
    this.bias = bias ? new Parameter([experts], zeros) : null;
  }

  /**
   * Routes tokens [T, channels] to experts; returns ids and weights, [T, k] each. Adds its
   * statistics to `loads` if given. If several ranks route the same tokens, only one `counts`.
   * Throws DS_SHAPE if x has other sizes.
   */
  override forward(x: Tensor, loads: RouterLoads | null = null, counts = true): Routes {
    if (!loads && this.isFewTokens(x)) return this.routeFew(x);
    const logits = linear(x, this.weight, this.bias);
    const routes = routeTopK(logits, this);
    if (loads)
      loads.layers.push(
        computeLoad(counts ? logits : logits.detach(), routes.ids, loads.mask).keep(),
      );
    return routes;
  }

  /** Returns whether one kernel computes the routes: the tokens of a decoding step on a GPU. */
  private isFewTokens({ ndim, shape, dtype, device }: Tensor): boolean {
    const { weight } = this;
    const isStep = !isGradEnabled() && ndim === 2 && required(shape[0]) <= FEW_TOKENS;
    const isSame = dtype === weight.dtype && shape[1] === weight.shape[1] && dtype !== 'f64';
    return isStep && isSame && device.kind === 'cuda' && !isBatchInvariant();
  }

  private routeFew(x: Tensor): Routes {
    const rows = x.contiguous();
    const { weight, bias, normalize } = this;
    const [tokens, experts] = [required(rows.shape[0]), required(weight.shape[0])];
    const logits = Tensor.empty([tokens, experts], rows.dtype, rows.device);
    const ids = Tensor.empty([tokens, this.k], 'i32', rows.device);
    const weights = Tensor.empty([tokens, this.k], 'f32', rows.device);
    kernels.routeTopK({ logits, x: rows, weight, bias, ids, weights, normalize });
    return { ids, weights };
  }
}

/** For at most so many tokens, one kernel of a GPU computes logits and choices. */
const FEW_TOKENS = 32;

function tooManyError(k: number, experts: number): DsError {
  return argumentError(
    'TopKRouter',
    'at most 512 experts, and at most all of them per token',
    `${k} of ${experts}`,
  );
}

/**
 * Returns [2, experts]: the choices per expert, and the sum of their probabilities, which has a
 * gradient.
 */
function computeLoad(logits: Tensor, ids: Tensor, mask: Tensor | null): Tensor {
  return scope(() => {
    const experts = logits.size(1);
    const probabilities = softmax(logits.to('f32'), -1);
    if (!mask) return stack([choicesOf(ids, experts), probabilities.sum(0)]);
    const counted = mask.unsqueeze(1);
    const known = where(counted.gt(0), ids, experts);
    return stack([choicesOf(known, experts), probabilities.mul(counted).sum(0)]);
  });
}

/** Routing by groups of experts, or by scores that do not add up to 1. Source: DeepSeek. */
export interface GroupRouting {
  /** Scores of experts: the sigmoid of each logit, or a softmax over all logits. */
  scores: 'sigmoid' | 'softmax';
  /** Number of groups with equally many experts. Default: 1. */
  groups?: number;
  /** Number of groups per token, chosen by the largest scores. Default: all. */
  keptGroups?: number;
  /** Factor of the weights. Default: 1. */
  scale?: number;
  /** Whether scores get a bias for the choice. Default: only with a sigmoid. */
  choiceBias?: boolean;
  /** Whether the weights scale the inputs of experts, not their outputs. Default: false. */
  scalesInputs?: boolean;
}

/** Added to the sum of weights before a division. Source: DeepSeek-V3. */
const TINY = 1e-20;

/**
 * Sends each token to the k experts with the largest scores among the experts of some groups. With
 * sigmoid scores, `e_score_correction_bias` is added for the choice only, and a group has the sum
 * of its two largest scores; with a softmax it has the largest. Computes in f32.
 */
export class GroupRouter extends TopKRouter {
  /**
   * Bias for the choice of experts [experts] f32, with a softmax [1, experts]; never trained by
   * gradients. null: no bias.
   */
  readonly e_score_correction_bias: Parameter | null;
  private readonly routing: Required<Omit<GroupRouting, 'choiceBias'>>;

  /** Throws DS_ARGUMENT for invalid sizes or options. */
  constructor(
    channels: number,
    experts: number,
    routing: GroupRouting,
    options: TopKRouterOptions = {},
  ) {
    super(channels, experts, options);
    const op = 'GroupRouter';
    const {
      scores,
      groups = 1,
      keptGroups = groups,
      scale = 1,
      choiceBias = scores === 'sigmoid',
      scalesInputs = false,
    } = readOptions(op, routing, namesOf.GroupRouting);
    if (scores !== 'sigmoid' && scores !== 'softmax') {
      throw valueError(`${op} scores`, '"sigmoid" or "softmax"', scores);
    }
    requireInteger(`${op} groups`, groups, 1);
    requireInteger(`${op} keptGroups`, keptGroups, 1);
    requireFinite(`${op} scale`, scale);
    const size = experts / groups;
    const min = scores === 'sigmoid' && groups > 1 ? 2 : 1;
    if (!Number.isInteger(size) || size < min) {
      throw valueError(`${op} groups`, `equal groups of ${experts} experts`, groups);
    }
    if (keptGroups > groups || keptGroups * size < this.k) {
      const expected = `at most ${groups}, with ${this.k} experts or more`;
      throw valueError(`${op} keptGroups`, expected, keptGroups);
    }
    requireType(`${op} scalesInputs`, scalesInputs, 'boolean');
    this.routing = { scores, groups, keptGroups, scale, scalesInputs };
    // ERNIE's files, with a softmax, have a further dim of 1.
    const shape = scores === 'sigmoid' ? [experts] : [1, experts];
    this.e_score_correction_bias = choiceBias ? createFrozen(shape) : null;
  }

  /**
   * Routes tokens as TopKRouter does. Throws DS_ARGUMENT for `loads`: routing statistics are not
   * supported.
   */
  override forward(x: Tensor, loads: RouterLoads | null = null): Routes {
    if (loads) throw argumentError('GroupRouter', 'no load-balancing loss', 'routing statistics');
    const { k, normalize } = this;
    const { scale, scalesInputs } = this.routing;
    const toWide = (tensor: Tensor): Tensor => (tensor.dtype === 'f64' ? tensor : tensor.to('f32'));
    const logits = linear(toWide(x), toWide(this.weight), this.bias && toWide(this.bias));
    const scores = this.routing.scores === 'sigmoid' ? sigmoid(logits) : softmax(logits, -1);
    const ids = scope(() => topk(this.choiceScores(logits.detach(), scores.detach()), k).indices);
    const chosen = gather(scores, 1, ids);
    const shares = normalize
      ? chosen.div(chosen.sum({ dims: [1], keepDim: true }).add(TINY))
      : chosen;
    const weights = scale === 1 ? shares : shares.mul(scale);
    return { ids: ids.to('i32'), weights, ...(scalesInputs && { scalesInputs }) };
  }

  /** Returns the scores [T, E] that select experts; -infinity outside of the kept groups. */
  private choiceScores(logits: Tensor, scores: Tensor): Tensor {
    const { e_score_correction_bias: bias } = this;
    const { groups, keptGroups } = this.routing;
    // Logits select the same experts as scores, but sigmoids of large logits all round to 1.
    if (!bias && keptGroups === groups) return logits;
    const choice = bias ? scores.add(bias.detach().to(scores.dtype)) : scores;
    if (keptGroups === groups) return choice;
    const [T, E] = [scores.size(0), scores.size(1)];
    const inGroups = choice.reshape([T, groups, E / groups]);
    const best = bias ? topk(inGroups, 2).values.sum(2) : inGroups.max(2);
    const kept = topk(best, keptGroups).indices;
    const none = zerosOf([T, groups], { dtype: choice.dtype, device: choice.device });
    const isKept = scatter(none, 1, kept, 1).gt(0).unsqueeze(2);
    return where(isKept, inGroups, Number.NEGATIVE_INFINITY).reshape([T, E]);
  }
}

/**
 * Sends each token to the two experts with the largest logits. The weight of an expert is its
 * probability in a softmax over the experts with similar logits: they differ from its logit by at
 * most twice `jitter`, relative to the larger magnitude. The softmax of the second expert excludes
 * the first. Source: Liu et al. 2023 (SparseMixer-v2); transformers' PhimoeTopKRouter. As in these
 * sources outside of training, the choice is not random.
 */
export class SparseMixerRouter extends TopKRouter {
  /** Throws DS_ARGUMENT for invalid sizes or options. */
  constructor(
    channels: number,
    experts: number,
    private readonly jitter: number,
    options: TopKRouterOptions = {},
  ) {
    super(channels, experts, options);
    requireFinite('SparseMixerRouter jitter', jitter, 0);
    if (this.k !== 2) throw valueError('SparseMixerRouter k', '2', this.k);
  }

  /**
   * Routes tokens as TopKRouter does. Throws DS_ARGUMENT for `loads`: routing statistics are not
   * supported.
   */
  override forward(x: Tensor, loads: RouterLoads | null = null): Routes {
    if (loads)
      throw argumentError('SparseMixerRouter', 'no load-balancing loss', 'routing statistics');
    const toWide = (tensor: Tensor): Tensor => (tensor.dtype === 'f64' ? tensor : tensor.to('f32'));
    const logits = linear(toWide(x), toWide(this.weight), this.bias && toWide(this.bias));
    const first = this.choose(logits, logits);
    const none = zerosOf(logits.shape, { dtype: logits.dtype, device: logits.device });
    const isTaken = scatter(none, 1, first.ids, 1).gt(0);
    const rest = where(isTaken, Number.NEGATIVE_INFINITY, logits);
    const second = this.choose(rest, logits);
    return {
      ids: concat([first.ids, second.ids], 1).to('i32'),
      weights: concat([first.weights, second.weights], 1),
    };
  }

  /** Returns the best of `candidates` [T, E], and its weights, [T, 1] each. */
  private choose(candidates: Tensor, logits: Tensor): Routes {
    const { values: best, indices: ids } = topk(candidates.detach(), 1);
    const scores = logits.detach();
    const magnitude = scores.abs();
    const factor = where(magnitude.gt(best), magnitude, best);
    const isFar = best
      .sub(scores)
      .div(factor)
      .gt(2 * this.jitter);
    const weights = softmax(where(isFar, Number.NEGATIVE_INFINITY, candidates), -1);
    return { ids, weights: gather(weights, 1, ids) };
  }
}

/** Returns a parameter in f32 without a gradient. */
function createFrozen(shape: readonly number[]): Parameter {
  const parameter = new Parameter(shape, zeros);
  parameter.requiresGrad = false;
  parameter.fixedDtype = 'f32';
  return parameter;
}

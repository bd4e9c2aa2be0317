// Experts beside a dense feed-forward block. Source: Gemma 4.
import { Experts } from '../../nn/experts.js';
import { type Initializer, normal, ones } from '../../nn/initializers.js';
import { Module } from '../../nn/module.js';
import { Parameter } from '../../nn/parameter.js';
import { type RouterLoads, TopKRouter } from '../../nn/routers.js';
import { embedding, type Routes, rmsNorm, type Tensor, ones as unit } from '../../tensor/index.js';
import type { BodySizes } from './config.js';
import { createNorm, type Norm } from './norms.js';

/** TopKRouter on normalized and scaled tokens; a number of each expert scales its weights. */
class ScaledRouter extends Module {
  /** Maps channels to the logits of experts. */
  readonly proj: TopKRouter;
  /** [channels]. */
  readonly scale: Parameter;
  /** [experts]. */
  readonly per_expert_scale: Parameter;

  constructor(
    private readonly channels: number,
    experts: number,
    given: { k: number; eps: number; weightInit: Initializer },
  ) {
    super();
    const { k, eps, weightInit } = given;
    this.eps = eps;
    this.proj = new TopKRouter(channels, experts, { k, weightInit });
    this.scale = new Parameter([channels], ones);
    this.per_expert_scale = new Parameter([experts], ones);
  }

  private readonly eps: number;

  /** Like TopKRouter. */
  override forward(x: Tensor, loads: RouterLoads | null = null, counts = true): Routes {
    const { channels, eps, scale, per_expert_scale: factors } = this;
    const normed = rmsNorm(x, unit([channels], { dtype: x.dtype, device: x.device }), eps);
    const { ids, weights } = this.proj.call(normed.mul(scale).mul(channels ** -0.5), loads, counts);
    const chosen = embedding(factors.reshape([-1, 1]), ids).reshape(ids.shape);
    return { ids, weights: weights.mul(chosen.to(weights.dtype)) };
  }
}

/** The modules beside a dense block. */
interface ParallelExperts {
  router: ScaledRouter;
  experts: Experts;
  /** Norm of the dense block's result. */
  post_feedforward_layernorm_1: Norm;
  /** Norm of the experts' result. */
  post_feedforward_layernorm_2: Norm;
  /** Norm of the experts' input. */
  pre_feedforward_layernorm_2: Norm;
}

/** Adds experts to a block whose feed-forward block is dense. */
export function addExperts(block: Module, body: BodySizes): void {
  const { moe, channels, eps, initializerRange } = body;
  if (!moe) return;
  const weightInit = normal(initializerRange);
  const norm = (): Norm => createNorm(body, channels) as Norm;
  const modules: ParallelExperts = {
    router: new ScaledRouter(channels, moe.experts, { k: moe.perToken, eps, weightInit }),
    experts: new Experts(moe.experts, channels, moe.hidden, { weightInit, activation: 'geluTanh' }),
    post_feedforward_layernorm_1: norm(),
    post_feedforward_layernorm_2: norm(),
    pre_feedforward_layernorm_2: norm(),
  };
  Object.assign(block, modules);
}

/** The sum of a dense block's result and of the experts' result for the stream [B, T, C]. */
export function addExpertsResult(
  block: Module,
  { dense, stream }: { dense: Tensor; stream: Tensor },
): Tensor {
  const modules = block as unknown as ParallelExperts;
  const x = modules.pre_feedforward_layernorm_2.call(stream);
  const sparse = modules.experts.call(x, modules.router, null, stream);
  const first = modules.post_feedforward_layernorm_1.call(dense);
  return first.add(modules.post_feedforward_layernorm_2.call(sparse));
}

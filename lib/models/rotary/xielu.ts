// xIELU: an activation with two parameters. Source: Huang and Schlag 2025; transformers'
// XIELUActivation.
import { constant } from '../../nn/initializers.js';
import { Module } from '../../nn/module.js';
import { Parameter } from '../../nn/parameter.js';
import { expm1, minimum, softplus, type Tensor, where } from '../../tensor/index.js';

/** The initial slope of both sides is 0.8; parameters are the inverse of softplus. */
const [SLOPE, BETA, EPS] = [0.8, 0.5, -1e-6];

/** A number of the files that is not trained. */
function createConstant(value: number): Parameter {
  const parameter = new Parameter([], constant(value));
  parameter.requiresGrad = false;
  return parameter;
}

/**
 * For x > 0: a x^2 + beta x. Else: b (exp(min(x, eps)) - 1 - x) + beta x. a is softplus(alpha_p), b
 * is beta + softplus(alpha_n).
 */
export class Xielu extends Module {
  /** [1]. */
  readonly alpha_p = new Parameter([1], constant(Math.log(Math.expm1(SLOPE))));
  /** [1]. */
  readonly alpha_n = new Parameter([1], constant(Math.log(Math.expm1(SLOPE - BETA))));
  /** [], not trained. */
  readonly beta = createConstant(BETA);
  /** [], not trained. */
  readonly eps = createConstant(EPS);

  /** [.., hidden] to the same shape. */
  override forward(x: Tensor): Tensor {
    const { beta, eps } = this;
    const linear = x.mul(beta);
    const right = x.mul(x).mul(softplus(this.alpha_p));
    const negativeSide = expm1(minimum(x, eps)).sub(x).mul(softplus(this.alpha_n).add(beta));
    return where(x.gt(0), right, negativeSide).add(linear);
  }
}

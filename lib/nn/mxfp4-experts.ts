// Experts with frozen 4-bit matrices in MXFP4: codes of e2m1 with a power of two for each 32
// inputs. Source: OCP Microscaling Formats (MX) 1.0.

import type { DType } from '../runtime/dtype.js';
import * as kernels from '../runtime/kernels.generated.js';
import { leading } from '../runtime/required.js';
import {
  type ComputedWeight,
  isGradEnabled,
  refuseBatchInvariant,
  scope,
  Tensor,
} from '../tensor/index.js';
import { callExperts, type Experts, runExperts } from './experts.js';
import { Module } from './module.js';
import { StoredParameter } from './packed-linear.js';
import type { Parameter } from './parameter.js';
import type { RouterLoads, TokenRouter } from './routers.js';

/** Inputs that share a scale, and the bytes of their codes. */
export const MXFP4_BLOCK = { inputs: 32, bytes: 16 };

/** Maximum number of tokens for which kernels read the codes directly. */
const FEW_TOKENS = 32;

/** @internal The codes and scales of a matrix [out, in] of each expert. */
class Mxfp4Matrices implements ComputedWeight {
  constructor(
    readonly shape: readonly number[],
    readonly stored: Parameter,
    readonly scales: Parameter,
  ) {}

  values(dtype: DType): Tensor {
    const out = Tensor.empty(this.shape, dtype, this.stored.device);
    kernels.mxfp4Dequantize({ codes: this.stored, scales: this.scales, out });
    return out;
  }
}

/**
 * @internal Experts with frozen matrices in MXFP4. For a few tokens, kernels read the codes; for
 * more tokens, each product dequantizes its matrices temporarily. Parameters have the names of
 * transformers' files of gpt-oss.
 */
export class Mxfp4Experts extends Module {
  /**
   * Codes of gate and up [experts, 2 hidden, channels / 32, 16] u8; with a limit, gate and up
   * alternate.
   */
  readonly gate_up_proj_blocks: Parameter;
  /** Scales of gate and up [experts, 2 hidden, channels / 32] u8. */
  readonly gate_up_proj_scales: Parameter;
  /** Biases of gate and up [experts, 2 hidden]; null without biases. */
  readonly gate_up_proj_bias: Parameter | null;
  /** Codes of the outputs [experts, channels, hidden / 32, 16] u8. */
  readonly down_proj_blocks: Parameter;
  /** Scales of the outputs [experts, channels, hidden / 32] u8. */
  readonly down_proj_scales: Parameter;
  /** Biases of the outputs [experts, channels]; null without biases. */
  readonly down_proj_bias: Parameter | null;
  /** Bound of gate and up; see Experts. */
  readonly limit: number | null;
  /** The function inside; see Experts. */
  readonly activation: Experts['activation'];
  readonly #up: Mxfp4Matrices;
  readonly #down: Mxfp4Matrices;

  /** Creates zero matrices of the sizes of `whole`, and takes over its biases. */
  constructor(whole: Experts) {
    super();
    this.training = whole.training;
    this.limit = whole.limit;
    this.activation = whole.activation;
    const up = byOutputs(whole, whole.gate_up_proj);
    const down = byOutputs(whole, whole.down_proj);
    [this.gate_up_proj_blocks, this.gate_up_proj_scales] = allocatePacked(up);
    this.gate_up_proj_bias = whole.gate_up_proj_bias?.requireGrad(false) ?? null;
    [this.down_proj_blocks, this.down_proj_scales] = allocatePacked(down);
    this.down_proj_bias = whole.down_proj_bias?.requireGrad(false) ?? null;
    this.#up = new Mxfp4Matrices(up, this.gate_up_proj_blocks, this.gate_up_proj_scales);
    this.#down = new Mxfp4Matrices(down, this.down_proj_blocks, this.down_proj_scales);
  }

  /** The matrices of gate and up [experts, 2 hidden, channels]. */
  get gate_up_proj(): ComputedWeight {
    return this.#up;
  }

  /** The matrices of the outputs [experts, channels, hidden]. */
  get down_proj(): ComputedWeight {
    return this.#down;
  }

  /** Always false: matrices are [out, in], also with a limit. */
  get inputsFirst(): false {
    return false;
  }

  /** Maps x [.., channels] to the same shape; see Experts. */
  override forward(
    x: Tensor,
    router: TokenRouter,
    loads: RouterLoads | null = null,
    routed: Tensor | null = null,
  ): Tensor {
    const tokens = x.numel / Math.max(1, x.size(-1));
    const isOther = routed !== null || this.activation !== 'silu';
    if (isGradEnabled() || tokens > FEW_TOKENS || x.dtype === 'f64' || isOther) {
      return callExperts(this, x, router, { loads, routed });
    }
    refuseBatchInvariant('experts', 'dense layers', 'a mixture of experts');
    return scope(() => {
      const rows = x.reshape([-1, x.size(-1)]).contiguous();
      const routes = router.call(rows, loads);
      if (routes.scalesInputs) return runExperts(this, rows, routes, null).reshape(x.shape);
      const { ids, weights } = routes;
      const out = Tensor.empty(rows.shape, rows.dtype, rows.device);
      kernels.mxfp4Experts({
        x: rows,
        ids,
        weights,
        out,
        limit: this.limit ?? 0,
        alternate: this.limit !== null,
        upCodes: this.gate_up_proj_blocks,
        upScales: this.gate_up_proj_scales,
        upBias: this.gate_up_proj_bias,
        downCodes: this.down_proj_blocks,
        downScales: this.down_proj_scales,
        downBias: this.down_proj_bias,
      });
      return out.reshape(x.shape);
    });
  }
}

/** Returns the shape [experts, out, in] of a matrix of `whole`. */
function byOutputs({ inputsFirst }: Experts, matrix: Parameter): readonly number[] {
  const [experts, first, second] = leading(matrix.shape, 3);
  return inputsFirst ? [experts, second, first] : [experts, first, second];
}

/** Returns zero codes and scales of matrices [experts, out, in]. */
function allocatePacked(shape: readonly number[]): [Parameter, Parameter] {
  const [experts, outputs, inputs] = leading(shape, 3);
  const scales = [experts, outputs, inputs / MXFP4_BLOCK.inputs];
  return [
    new StoredParameter([...scales, MXFP4_BLOCK.bytes], 'u8'),
    new StoredParameter(scales, 'u8'),
  ];
}

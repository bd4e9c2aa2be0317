// Experts with frozen 4-bit matrices (NF4).

import { callExperts, type Experts } from '../nn/experts.js';
import { type Field, Module } from '../nn/module.js';
import type { Parameter } from '../nn/parameter.js';
import type { RouterLoads, TokenRouter } from '../nn/routers.js';
import type { DType } from '../runtime/dtype.js';
import { argumentError } from '../runtime/input-errors.js';
import { type ComputedWeight, cast, noGrad, scope, type Tensor } from '../tensor/index.js';
import { NF4Linear, type NF4Options, readNF4Options } from './nf4-linear.js';

/** A matrix of all experts in NF4. Its parameters have the names of NF4Linear's. */
export class NF4Matrices extends Module implements ComputedWeight {
  /**
   * The storage. It is not a child, so that adapters and files do not treat it as a linear layer.
   */
  readonly #packed: NF4Linear;

  /** @internal Creates zeros for a matrix of `shape`. */
  constructor(shape: readonly number[], options: Required<NF4Options>) {
    super();
    this.#packed = new NF4Linear({ ...options, shape, hasGelu: false });
  }

  /** @internal Quantizes `matrix` on its device. */
  static from(matrix: Parameter, options: Required<NF4Options>): NF4Matrices {
    const matrices = new NF4Matrices(matrix.shape, options);
    for (const parameter of matrices.parameters()) parameter.moveTo(matrix.device, parameter.dtype);
    noGrad(() => scope(() => matrices.setValues(cast(matrix, 'f32'))));
    return matrices;
  }

  /** @internal */
  protected override *fields(): Generator<[string, Field]> {
    yield* Module.fieldsOf(this.#packed);
  }

  /** The shape [experts, out, in], or [experts, in, out] with a limit. */
  get shape(): readonly number[] {
    return this.#packed.shape;
  }

  /** The bytes with two weights each. */
  get stored(): Parameter {
    return this.#packed.stored;
  }

  /** Returns the dequantized matrices. */
  values(dtype: DType): Tensor {
    return this.#packed.values(dtype);
  }

  /** Stores f32 values, rounded to NF4. Throws DS_ARGUMENT if an engine owns them. */
  setValues(values: Tensor): void {
    this.#packed.setValues(values);
  }

  /** Throws DS_ARGUMENT: NF4Experts multiplies by the matrices. */
  override forward(): never {
    throw argumentError('NF4Matrices', 'a call of NF4Experts', 'a call of its matrices');
  }
}

/**
 * Experts with frozen 4-bit matrices. For each product, forward and backward dequantize one matrix
 * of all experts temporarily, in the dtype of the tokens.
 */
export class NF4Experts extends Module {
  /** Gate and up projections of all experts. */
  readonly gate_up_proj: NF4Matrices;
  /** The bias of the experts; null without. */
  readonly gate_up_proj_bias: Parameter | null;
  /** Down projections of all experts. */
  readonly down_proj: NF4Matrices;
  /** The bias of the experts; null without. */
  readonly down_proj_bias: Parameter | null;
  /** Bound of gate and up; see Experts. */
  readonly limit: number | null;
  /** The function inside; see Experts. */
  readonly activation: Experts['activation'];
  /** Whether matrices are stored as [in, out]. */
  readonly inputsFirst: boolean;

  private constructor(experts: Experts, pack: (matrix: Parameter) => NF4Matrices) {
    super();
    this.training = experts.training;
    this.gate_up_proj = pack(experts.gate_up_proj);
    this.down_proj = pack(experts.down_proj);
    this.gate_up_proj_bias = experts.gate_up_proj_bias?.requireGrad(false) ?? null;
    this.down_proj_bias = experts.down_proj_bias?.requireGrad(false) ?? null;
    this.limit = experts.limit;
    this.activation = experts.activation;
    this.inputsFirst = experts.inputsFirst;
  }

  /**
   * Quantizes the matrices of `experts` on their device and frees them; biases are shared. Throws
   * DS_NONFINITE for weights that are not finite, and DS_ARGUMENT if an engine owns them.
   */
  static from(experts: Experts, given: NF4Options = {}): NF4Experts {
    const options = readNF4Options('NF4Experts.from', given);
    return new NF4Experts(experts, (matrix) => {
      matrix.requireWritable('NF4Experts.from');
      const packed = NF4Matrices.from(matrix, options);
      matrix.dispose();
      return packed;
    });
  }

  /** Maps x [.., channels] to the same shape; see Experts. */
  override forward(
    x: Tensor,
    router: TokenRouter,
    loads: RouterLoads | null = null,
    routed: Tensor | null = null,
  ): Tensor {
    return callExperts(this, x, router, { loads, routed });
  }
}

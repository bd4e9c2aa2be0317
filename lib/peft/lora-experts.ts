// Adapters of experts: low-rank updates of the matrices of all experts of a layer.

import { callExperts, type Experts, type ExpertUpdate } from '../nn/experts.js';
import { normal, zeros } from '../nn/initializers.js';
import { Linear } from '../nn/linear.js';
import { Module } from '../nn/module.js';
import type { Parameter } from '../nn/parameter.js';
import type { RouterLoads, TokenRouter } from '../nn/routers.js';
import { argumentError } from '../runtime/input-errors.js';
import { required } from '../runtime/required.js';
import {
  cast,
  groupedLinear,
  groupedProduct,
  noGrad,
  type RowGroups,
  scope,
  type Tensor,
} from '../tensor/index.js';
import { changeValues, createLinearInit, LoraLayer, type LoraSizes } from './lora-layer.js';
import { NF4Experts } from './nf4-experts.js';

/** @internal The matrices of experts that can have an adapter, in PEFT's order of nesting. */
export const EXPERT_MATRICES = ['gate_up_proj', 'down_proj'] as const;

/** @internal The name of a matrix of experts. */
export type ExpertMatrix = (typeof EXPERT_MATRICES)[number];

/**
 * The inner adapter of experts with two adapters. PEFT nests the two, and state names follow from
 * that.
 */
export class ExpertFactors extends Module {
  /** Both factors have the weights of all experts. */
  constructor(
    /** Matrix A [experts r, in], in which each expert has r neighbouring rows. */
    readonly lora_A: Linear,
    /** Matrix B [out, r experts], in which the values of one row of A are neighbours. */
    readonly lora_B: Linear,
  ) {
    super();
  }

  /** Throws DS_ARGUMENT: LoraExperts applies the factors. */
  override forward(): never {
    throw argumentError('ExpertFactors', 'a call of LoraExperts', 'a call of its factors');
  }
}

/** Experts that can have adapters. */
export type AnyExperts = Experts | NF4Experts;

/** A matrix of all experts, and its factors. */
interface Adapter {
  matrix: ExpertMatrix;
  sizes: LoraSizes;
  a: Linear;
  b: Linear;
}

/**
 * Experts with adapters: each product of an expert e gets scaling B_e A_e x. The factors of all
 * experts lie in two tensors of PEFT's layout. Source: PEFT's ParamWrapper.
 */
export class LoraExperts extends LoraLayer<AnyExperts> {
  /** The factors of gate_up_proj if down_proj has an adapter too; else null. */
  readonly base_layer: ExpertFactors | null;
  /** Matrix A [experts r, in], of down_proj, or of gate_up_proj if only that has an adapter. */
  readonly lora_A: Linear;
  /** Matrix B [out, r experts]. */
  readonly lora_B: Linear;
  readonly #adapters: readonly Adapter[];

  /** Adapts the matrices in `sizes`. Dropout of their inputs is not possible. */
  constructor(base: AnyExperts, sizes: ReadonlyMap<ExpertMatrix, LoraSizes>) {
    const all = EXPERT_MATRICES.filter((matrix) => sizes.has(matrix));
    super(base, required(sizes.get(required(all[0]))));
    this.#adapters = all.map((matrix) => adapterOf(base, matrix, required(sizes.get(matrix))));
    const [inner, outer] = this.#adapters;
    this.base_layer = inner && outer ? new ExpertFactors(inner.a, inner.b) : null;
    const { a, b } = required(outer ?? inner);
    this.lora_A = a;
    this.lora_B = b;
    for (const { sizes, a, b } of this.#adapters) {
      for (const { weight } of [a, b]) this.factor(weight, sizes);
    }
  }

  /** The first adapted matrix without its adapter. */
  get weight(): Parameter {
    return required(this.weights[0]);
  }

  override get weights(): readonly Parameter[] {
    const { base } = this;
    return this.#adapters.map(({ matrix }) => storedOf(base, matrix));
  }

  override get sizesByName(): ReadonlyMap<string, LoraSizes> {
    return new Map(this.#adapters.map(({ matrix, sizes }) => [`.${matrix}`, sizes]));
  }

  override get factors(): readonly Parameter[] {
    return this.#adapters.flatMap(({ a, b }) => [a.weight, b.weight]);
  }

  /** Returns the update of the first adapted matrix in f32, in its shape. */
  override update(): Tensor {
    return updateOf(this.base, required(this.#adapters[0]));
  }

  protected override addUpdate(): void {
    this.changeAll((weight, update) => weight.add(update));
  }

  protected override subtractUpdate(): void {
    this.changeAll((weight, update) => weight.sub(update));
  }

  private changeAll(body: (weight: Tensor, update: Tensor) => Tensor): void {
    const { base } = this;
    for (const weight of this.weights) weight.requireWritable('peft.merge');
    noGrad(() => {
      for (const adapter of this.#adapters) {
        scope(() => changeMatrix(base, adapter, (weight) => body(weight, updateOf(base, adapter))));
      }
    });
  }

  /** Maps x [.., channels] to the same shape; see Experts. */
  override forward(
    x: Tensor,
    router: TokenRouter,
    loads: RouterLoads | null = null,
    routed: Tensor | null = null,
  ): Tensor {
    const { base } = this;
    if (!this.isActive) return base.call(x, router, loads, routed);
    const updates = this.#adapters.map(
      (adapter) => [adapter.matrix, updateFor(base, adapter)] as const,
    );
    return callExperts(base, x, router, { loads, routed }, Object.fromEntries(updates));
  }
}

/** Returns the parameter that holds most of a matrix. */
function storedOf(base: AnyExperts, matrix: ExpertMatrix): Parameter {
  return base instanceof NF4Experts ? base[matrix].stored : base[matrix];
}

/** Replaces a matrix by body(its values in f32). */
function changeMatrix(
  base: AnyExperts,
  { matrix }: Adapter,
  body: (weight: Tensor) => Tensor,
): void {
  if (base instanceof NF4Experts) base[matrix].setValues(body(base[matrix].values('f32')));
  else changeValues(base[matrix], body);
}

/** Returns whether matrices are stored as [in, out]. */
const isTransposed = ({ inputsFirst }: AnyExperts): boolean => inputsFirst;

function adapterOf(base: AnyExperts, matrix: ExpertMatrix, sizes: LoraSizes): Adapter {
  const [experts = 0, rows = 0, columns = 0] = base[matrix].shape;
  const [outputs, inputs] = isTransposed(base) ? [columns, rows] : [rows, columns];
  const { r, init } = sizes;
  const startOfA = init === 'gaussian' ? normal(1 / r) : createLinearInit();
  const startOfB = init === false ? createLinearInit() : zeros;
  const a = new Linear(inputs, experts * r, { bias: false, weightInit: startOfA });
  const b = new Linear(experts * r, outputs, { bias: false, weightInit: startOfB });
  return { matrix, sizes, a, b };
}

/** Returns A as [experts, r, in] and B as [experts, r, out]. */
function factorsOf(base: AnyExperts, { matrix, sizes, a, b }: Adapter, dtype: Tensor['dtype']) {
  const experts = required(base[matrix].shape[0]);
  const left = cast(a.weight, dtype).reshape([experts, sizes.r, -1]);
  const right = cast(b.weight, dtype).reshape([-1, sizes.r, experts]).transpose(0, 2);
  return { left, right };
}

/** Returns the update of a matrix in f32, in the matrix's shape. */
function updateOf(base: AnyExperts, adapter: Adapter): Tensor {
  const { left, right } = factorsOf(base, adapter, 'f32');
  const scaled = right.mul(adapter.sizes.scaling);
  return isTransposed(base)
    ? left.transpose(1, 2).matmul(scaled)
    : scaled.transpose(1, 2).matmul(left);
}

/** Returns scaling B_e A_e x for rows that are sorted by expert. */
const updateFor =
  (base: AnyExperts, adapter: Adapter): ExpertUpdate =>
  (rows: Tensor, groups: RowGroups, isGathered: boolean) =>
    scope(() => {
      const { left, right } = factorsOf(base, adapter, rows.dtype);
      const inner = groupedLinear(rows, left, groups, isGathered);
      return groupedProduct(inner, right.mul(adapter.sizes.scaling), groups);
    });

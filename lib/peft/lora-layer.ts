// Layers with an adapter: wrappers that keep the parameter names of their base layer.

import { Embedding } from '../nn/embedding.js';
import { type Initializer, kaimingUniform, normal, zeros } from '../nn/initializers.js';
import { Linear, LinearGelu } from '../nn/linear.js';
import { type Refusal, refuseLoads, refuseTogether } from '../nn/loadable.js';
import { type Field, Module } from '../nn/module.js';
import { PackedLinear } from '../nn/packed-linear.js';
import { Parameter } from '../nn/parameter.js';
import { argumentError } from '../runtime/input-errors.js';
import * as kernels from '../runtime/kernels.generated.js';
import { leading } from '../runtime/required.js';
import {
  cast,
  dropout,
  embedding,
  gelu,
  isBatchInvariant,
  linear,
  noGrad,
  recomputed,
  scope,
  type Tensor,
  where,
} from '../tensor/index.js';
import { addLinearInto } from '../tensor/ops/linear.js';
import { addWideLinearInto, isWide, wideLinear } from '../tensor/ops/wide-linear.js';
import { markChanged } from '../tensor/tape.js';

/** Settings of one adapter. */
export interface LoraSizes {
  /** Rank. */
  r: number;
  /** Scaling factor of the update. */
  scaling: number;
  /** Dropout probability of the adapter's input. */
  dropout: number;
  /** Initialization of A and B: see LoraOptions. */
  init: boolean | 'gaussian';
  /** Whether the adapter is in f32, independent of the layer's dtype. */
  isWide: boolean;
}

/** The error for loads while adapters are merged: the loaded weights have no update. */
const MERGED: Refusal = {
  expected: 'unmerged adapters',
  got: 'merged adapters',
  hint: 'Call peft.unmerge(model), or peft.unload(model) to keep the merged weights without adapters.',
};

/** The error for loads of merged weights into unmerged adapters: the update would count twice. */
const SAVED_MERGED: Refusal = {
  expected: 'values of unmerged adapters',
  got: 'values of merged adapters: their updates would count twice',
  hint: 'Call peft.unmerge(model) before stateDict(), or omit the adapters from the state.',
};

/**
 * @internal Returns the initialization of PyTorch's Linear. Source: PEFT's reset_lora_parameters.
 */
export const createLinearInit = (): Initializer => kaimingUniform({ a: Math.sqrt(5) });

/**
 * A layer with a LoRA adapter: y = base(x) + scaling * B A dropout(x). The base is not a child: its
 * fields become fields of this module, so its parameters keep their names. Source: Hu et al. 2021;
 * names and defaults as in PEFT.
 */
export abstract class LoraLayer<Base extends Module = Module> extends Module {
  /** The replaced layer. It is not a child, since that would change parameter names. */
  readonly #base: Base;
  /** Whether the base's weight contains the update. */
  isMerged = false;
  /** Whether forward applies the adapter. */
  isEnabled = true;

  protected constructor(
    base: Base,
    /** Settings of the adapter. */
    readonly sizes: LoraSizes,
  ) {
    super();
    this.#base = base;
    this.training = base.training;
  }

  /** The layer without its adapter. */
  get base(): Base {
    return this.#base;
  }

  /** @internal */
  protected override *fields(): Generator<[string, Field]> {
    yield* Module.fieldsOf(this.#base);
    yield* super.fields();
  }

  /** A and B. */
  abstract get factors(): readonly Parameter[];

  /** @internal Parameters in addition to the base's. */
  get added(): readonly Parameter[] {
    const ownParameters = new Set(this.#base.parameters());
    return this.parameters().filter((parameter) => !ownParameters.has(parameter));
  }

  /** Returns the weight update in f32, in the weight's shape [out, in] or [rows, channels]. */
  abstract update(): Tensor;

  /** The base's weights with an adapter. */
  get weights(): readonly Parameter[] {
    return [this.weight];
  }

  /** @internal The settings of each adapter, by its name relative to the layer. */
  get sizesByName(): ReadonlyMap<string, LoraSizes> {
    return new Map([['', this.sizes]]);
  }

  /** Whether forward computes the adapter separately from the base. */
  protected get isActive(): boolean {
    return this.isEnabled && !this.isMerged;
  }

  /**
   * Adds the update to the weight in f32 with one rounding. Throws DS_ARGUMENT if an engine owns
   * the weight.
   */
  merge(): void {
    if (!this.isMerged) this.addUpdate();
    this.isMerged = true;
    this.refuse(MERGED, SAVED_MERGED);
  }

  /**
   * Subtracts the update from the weight; only rounding differences remain. Throws DS_ARGUMENT for
   * invalid arguments.
   */
  unmerge(): void {
    if (this.isMerged) this.subtractUpdate();
    this.isMerged = false;
    this.refuse(null, null);
  }

  /** @internal Allows loading again. Call it when the adapter is removed. */
  allowLoads(): void {
    this.refuse(null, null);
  }

  private refuse(over: Refusal | null, of: Refusal | null): void {
    refuseLoads(this.parameters(), over);
    for (const weight of this.weights) refuseTogether(weight, this.added, of);
  }

  /** Adds the update to the weight. */
  protected addUpdate(): void {
    this.changeWeight((before) => this.mergeInto(before));
  }

  /** Reverses addUpdate(). */
  protected subtractUpdate(): void {
    this.changeWeight((merged) => this.subtractFrom(merged));
  }

  /** Returns the merged weight in f32. */
  protected mergeInto(before: Tensor): Tensor {
    return before.add(this.update());
  }

  /** Reverses mergeInto(). */
  protected subtractFrom(merged: Tensor): Tensor {
    return merged.sub(this.update());
  }

  private changeWeight(body: (before: Tensor) => Tensor): void {
    noGrad(() => scope(() => changeWeight(this.base, body)));
  }

  /** The base's weight without the adapter. Some models read it directly. */
  abstract get weight(): Parameter;

  /** Prepares a parameter of the adapter. Moves it to the base's device if the base has memory. */
  protected factor(parameter: Parameter, { isWide } = this.sizes): Parameter {
    if (isWide) parameter.fixedDtype = 'f32';
    const { weight } = this;
    if (weight.isMaterialized) parameter.moveTo(weight.device, parameter.dtype);
    return parameter;
  }

  /** @internal Moves the factors to the device of the base, which may have moved. */
  settle(): void {
    for (const parameter of this.added) this.factor(parameter);
  }

  /** Prepares a parameter and computes its initial values now, since they depend on the base's. */
  protected startParameter(parameter: Parameter): Parameter {
    const { weight } = this;
    if (!weight.stored) void weight.buffer;
    void this.factor(parameter).buffer;
    return parameter;
  }
}

/** Replaces the base's weight by body(weight in f32). */
function changeWeight(base: Module, body: (before: Tensor) => Tensor): void {
  if (base instanceof PackedLinear) {
    base.setValues(body(base.values('f32')));
    return;
  }
  changeValues((base as Linear | Embedding).weight, body);
}

/** Replaces a weight by body(weight in f32). Throws DS_ARGUMENT if an engine owns it. */
export function changeValues(weight: Parameter, body: (before: Tensor) => Tensor): void {
  weight.requireWritable('peft.merge');
  kernels.copy({ in: body(cast(weight, 'f32')), out: weight });
  markChanged(weight);
}

/** Casts `x` to `dtype`. Autograd saves x and recomputes the copy. */
const toDtype = (x: Tensor, dtype: Tensor['dtype']): Tensor =>
  x.dtype === dtype ? x : recomputed((values) => cast(values, dtype), x);

/** Returns whether the weight alone gives the layer's output. */
const isPlainLinear = (layer: Linear): boolean =>
  layer.constructor === Linear && !layer.fp8 && !layer.hasHooks && !layer.bias;

/** An adapter of a linear layer: lora_A [r, in], lora_B [out, r]. */
export class LoraLinear extends LoraLayer<Linear | PackedLinear> {
  /** Projects inputs to r values. */
  readonly lora_A: Linear;
  /** Projects r values to outputs. */
  readonly lora_B: Linear;

  /** lora_B starts at 0 by default, so the output of `base` is unchanged. */
  constructor(base: Linear | PackedLinear, sizes: LoraSizes) {
    super(base, sizes);
    const [outputs, inputs] = shapeOf(base);
    const { r, init } = sizes;
    const startOfA = init === 'gaussian' ? normal(1 / r) : createLinearInit();
    const startOfB = init === false ? createLinearInit() : zeros;
    this.lora_A = new Linear(inputs, r, { bias: false, weightInit: startOfA });
    this.lora_B = new Linear(r, outputs, { bias: false, weightInit: startOfB });
    for (const parameter of this.factors) this.factor(parameter);
  }

  /** The base's weight without the adapter. Some models read it directly. */
  get weight(): Parameter {
    const { base } = this;
    return base instanceof PackedLinear ? base.stored : base.weight;
  }

  /** The base's bias. */
  get bias(): Parameter | null {
    return this.base.bias;
  }

  override get factors(): readonly Parameter[] {
    return [this.lora_A.weight, this.lora_B.weight];
  }

  override update(): Tensor {
    const [a, b] = leading(
      this.factors.map((factor) => cast(factor, 'f32')),
      2,
    );
    return b.mul(this.sizes.scaling).matmul(a);
  }

  /** Maps [..., inputs] to [..., outputs]. Throws DS_SHAPE if x has other sizes. */
  override forward(x: Tensor): Tensor {
    const { base } = this;
    if (!this.isActive) return base.call(x);
    return scope(() => {
      const sum = this.sumOf(x);
      return hasGelu(base) ? gelu(sum, 'tanh') : sum;
    });
  }

  /** Returns base(x) plus the adapter's output, before the activation. */
  protected sumOf(x: Tensor): Tensor {
    const { base, lora_A, lora_B, sizes } = this;
    const droppedX = this.dropInput(x);
    const isPlain = isPlainLinear(lora_B);
    const isOther = lora_B.weight.dtype !== x.dtype || lora_A.weight.dtype !== x.dtype;
    const isExact = isBatchInvariant();
    if (isPlain && isPlainLinear(lora_A) && !isExact && isWide(x, lora_A.weight, lora_B.weight)) {
      const inner = wideLinear(droppedX, lora_A.weight).mul(sizes.scaling);
      return addWideLinearInto(project(base, x), inner, lora_B.weight);
    }
    // A replay runs ops up to the last result that backward reads. That is the product of A, so it
    // comes first.
    if (!isPlain || isOther || isExact) {
      const update = this.computeUpdate(droppedX);
      return project(base, x).add(update);
    }
    const inner = lora_A.call(droppedX).mul(sizes.scaling);
    return addLinearInto(project(base, x), inner, lora_B.weight);
  }

  /** @internal Returns the adapter's output for x, without the base. */
  updateFor(x: Tensor): Tensor {
    return this.computeUpdate(this.dropInput(x));
  }

  /** Applies dropout to the adapter's input. */
  protected dropInput(x: Tensor): Tensor {
    return this.training ? dropout(x, this.sizes.dropout) : x;
  }

  /** Returns scaling * B A x, in x's dtype. */
  protected computeUpdate(x: Tensor): Tensor {
    const inner = this.lora_A.call(toDtype(x, this.lora_A.weight.dtype));
    return cast(this.lora_B.call(inner.mul(this.sizes.scaling)), x.dtype);
  }
}

const shapeOf = (base: Linear | PackedLinear): readonly [number, number] =>
  leading(base instanceof PackedLinear ? base.shape : base.weight.shape, 2);

export const hasGelu = (base: Linear | PackedLinear): boolean =>
  base instanceof PackedLinear ? base.hasGelu : base instanceof LinearGelu;

/** Applies the linear layer without its activation. A null `bias` omits the bias. */
export function project(
  base: Linear | PackedLinear,
  x: Tensor,
  bias: Tensor | null = base.bias,
): Tensor {
  return base.project(x, bias);
}

/** An adapter of an embedding: lora_embedding_A [r, rows], lora_embedding_B [channels, r]. */
export class LoraEmbedding extends LoraLayer<Embedding> {
  /** Matrix A [r, rows]. */
  readonly lora_embedding_A: Parameter;
  /** Matrix B [channels, r]. */
  readonly lora_embedding_B: Parameter;

  /** lora_embedding_A starts at 0 by default, so the output of `base` is unchanged. */
  constructor(base: Embedding, sizes: LoraSizes) {
    super(base, sizes);
    const [rows, channels] = leading(base.weight.shape, 2);
    const { r, init } = sizes;
    const startOfA = init === false ? normal(1) : zeros;
    this.lora_embedding_A = this.factor(new Parameter([r, rows], startOfA));
    this.lora_embedding_B = this.factor(new Parameter([channels, r], normal(1)));
  }

  /** The base's table without the adapter. A tied head reads it directly. */
  get weight(): Parameter {
    return this.base.weight;
  }

  override get factors(): readonly Parameter[] {
    return [this.lora_embedding_A, this.lora_embedding_B];
  }

  override update(): Tensor {
    const [a, b] = leading(
      this.factors.map((factor) => cast(factor, 'f32')),
      2,
    );
    return b.mul(this.sizes.scaling).matmul(a).transpose(0, 1);
  }

  /** Maps token ids [...] to rows [..., channels]. */
  override forward(index: Tensor): Tensor {
    const { base } = this;
    if (!this.isActive) return base.call(index);
    return scope(() => {
      const rows = base.call(index);
      const inner = this.lookUp(index);
      const update = linear(inner.mul(this.sizes.scaling), this.lora_embedding_B);
      return this.finishRows(rows.add(cast(update, rows.dtype)));
    });
  }

  /**
   * Returns the columns of A. The padding column gets no gradient, like the padding row of the
   * table.
   */
  private lookUp(index: Tensor): Tensor {
    const columns = embedding(this.lora_embedding_A.transpose(0, 1), index);
    const { paddingIdx } = this.base;
    if (paddingIdx === null) return columns;
    return where(index.eq(paddingIdx).unsqueeze(-1), columns.detach(), columns);
  }

  /** Returns rows that include the update after DoRA's scaling. Default: unchanged. */
  protected finishRows(rows: Tensor): Tensor {
    return rows;
  }
}

/** Wraps `base` with an adapter. Throws DS_ARGUMENT for an unsupported layer. */
export function createAdapter(name: string, base: Module, sizes: LoraSizes): LoraLayer {
  if (base instanceof Embedding) return new LoraEmbedding(base, sizes);
  if (base instanceof Linear || base instanceof PackedLinear) return new LoraLinear(base, sizes);
  throw argumentError(`addLora ${name}`, 'a Linear or an Embedding', `a ${base.constructor.name}`);
}

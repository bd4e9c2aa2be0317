// A layer with an adapter: a wrapper that keeps the layer's place and the names of its parameters.
import { DsError } from '../errors.js';
import { Embedding } from '../nn/embedding.js';
import { type Initializer, kaimingUniform, normal, zeros } from '../nn/initializers.js';
import { Linear, LinearGelu } from '../nn/linear.js';
import { type Refusal, refuseLoads, refuseTogether } from '../nn/loadable.js';
import { type Field, Module } from '../nn/module.js';
import { PackedLinear } from '../nn/packed-linear.js';
import { Parameter } from '../nn/parameter.js';
import * as kernels from '../runtime/kernels.generated.js';
import {
  cast,
  dropout,
  embedding,
  gelu,
  linear,
  noGrad,
  recomputed,
  scope,
  type Tensor,
  where,
} from '../tensor/index.js';
import { noteChanged } from '../tensor/tape.js';

/** What one adapter of a LoraConfig is. */
export interface LoraSizes {
  /** Its rank. */
  r: number;
  /** The factor of the update. */
  scaling: number;
  /** Probability with which an element of its input becomes 0 in training. */
  dropout: number;
  /** How A and B start: see LoraOptions. */
  init: boolean | 'gaussian';
  /** f32 whatever the dtype of the layer. */
  isWide: boolean;
}

/** Weights that were saved beside an adapter would be taken for those that have its update. */
const MERGED: Refusal = {
  expected: 'adapters beside the weights',
  got: 'merged ones',
  hint: 'peft.unmerge(model) first; or peft.unload(model), which keeps their updates and takes them off.',
};

/** Where adapters are beside the weights, such values have the update twice. */
const SAVED_MERGED: Refusal = {
  expected: 'values of adapters beside the weights',
  got: 'those of merged ones, with which updates would count twice',
  hint: 'peft.unmerge(model) before its state is taken, or leave the adapters out of it.',
};

/** As PyTorch's Linear starts, anew for each matrix. Source: PEFT's reset_lora_parameters. */
const asLinear = (): Initializer => kaimingUniform({ a: Math.sqrt(5) });

/**
 * y = base(x) + scaling * B A dropout(x). The base's parameters keep their names: it is not a
 * child, its fields are this module's. Source: Hu et al. 2021; names and defaults as in PEFT.
 */
export abstract class LoraLayer<Base extends Module = Module> extends Module {
  /** In whose place this module stands; no child of it, whose names would change. */
  readonly #base: Base;
  /** Whether the update is part of the base's weight now. */
  isMerged = false;
  /** False: the base alone computes. */
  isEnabled = true;

  protected constructor(
    base: Base,
    /** What the adapter is. */
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

  /** @internal All that it adds to the base's own parameters. */
  get added(): readonly Parameter[] {
    const own = new Set(this.#base.parameters());
    return this.parameters().filter((parameter) => !own.has(parameter));
  }

  /** The update of the weight, f32, in its shape [out, in] or [rows, channels]. */
  abstract update(): Tensor;

  /** Whether the adapter is to be computed beside the base. */
  protected get isActive(): boolean {
    return this.isEnabled && !this.isMerged;
  }

  /**
   * Adds the update to the weight, in f32, rounded once. Throws DS_ARGUMENT where an engine has it.
   */
  merge(): void {
    if (!this.isMerged) this.changeWeight((before) => this.mergedWith(before));
    this.isMerged = true;
    this.refuse(MERGED, SAVED_MERGED);
  }

  /** Takes it away again; the weight is what it was before but for rounding. Throws DS_ARGUMENT. */
  unmerge(): void {
    if (this.isMerged) this.changeWeight((merged) => this.takenFrom(merged));
    this.isMerged = false;
    this.refuse(null, null);
  }

  /**
   * @internal Its parameters are those of a layer alone: what is loaded over them is that one's.
   */
  allowLoads(): void {
    this.refuse(null, null);
  }

  private refuse(over: Refusal | null, of: Refusal | null): void {
    refuseLoads(this.parameters(), over);
    refuseTogether(this.weight, this.added, of);
  }

  /** The weight, f32, that computes alone what `before` and the adapter compute together. */
  protected mergedWith(before: Tensor): Tensor {
    return before.add(this.update());
  }

  /** What mergedWith() was given. */
  protected takenFrom(merged: Tensor): Tensor {
    return merged.sub(this.update());
  }

  private changeWeight(body: (before: Tensor) => Tensor): void {
    noGrad(() => scope(() => changeWeight(this.base, body)));
  }

  /** The base's weight, which some models read themselves: without the adapter. */
  abstract get weight(): Parameter;

  /** A parameter of the adapter; it has the base's device, where that has memory already. */
  protected factor(parameter: Parameter): Parameter {
    if (this.sizes.isWide) parameter.fixedDtype = 'f32';
    const { weight } = this;
    if (weight.isMaterialized) parameter.moveTo(weight.device, parameter.dtype);
    return parameter;
  }

  /** factor(), with its first values made now: they follow from the base's. */
  protected started(parameter: Parameter): Parameter {
    const { weight } = this;
    if (!weight.stored) void weight.buffer;
    void this.factor(parameter).buffer;
    return parameter;
  }
}

/** Replaces a base's weight by what `body` makes of its values in f32. */
function changeWeight(base: Module, body: (before: Tensor) => Tensor): void {
  if (base instanceof PackedLinear) {
    base.setValues(body(base.values('f32')));
    return;
  }
  const { weight } = base as Linear | Embedding;
  weight.requireWritable('peft.merge');
  kernels.copy({ in: body(cast(weight, 'f32')), out: weight });
  noteChanged(weight);
}

/** `x` in `dtype`; what reads it keeps x instead of the copy. */
const inDtype = (x: Tensor, dtype: Tensor['dtype']): Tensor =>
  x.dtype === dtype ? x : recomputed((values) => cast(values, dtype), x);

/** An adapter of a linear layer: lora_A [r, in], lora_B [out, r]. */
export class LoraLinear extends LoraLayer<Linear | PackedLinear> {
  /** From inputs to r values. */
  readonly lora_A: Linear;
  /** From them to outputs. */
  readonly lora_B: Linear;

  constructor(base: Linear | PackedLinear, sizes: LoraSizes) {
    super(base, sizes);
    const [outputs, inputs] = shapeOf(base);
    const { r, init } = sizes;
    const startOfA = init === 'gaussian' ? normal(1 / r) : asLinear();
    const startOfB = init === false ? asLinear() : zeros;
    this.lora_A = new Linear(inputs, r, { bias: false, weightInit: startOfA });
    this.lora_B = new Linear(r, outputs, { bias: false, weightInit: startOfB });
    for (const parameter of this.factors) this.factor(parameter);
  }

  /** The base's weight, which some models read themselves: without the adapter. */
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
    const [a, b] = this.factors.map((one) => cast(one, 'f32')) as [Tensor, Tensor];
    return b.mul(this.sizes.scaling).matmul(a);
  }

  /** [..., inputs] to [..., outputs]. Throws DS_SHAPE. */
  override forward(x: Tensor): Tensor {
    const { base } = this;
    if (!this.isActive) return base.call(x);
    return scope(() => {
      const sum = this.sumOf(x);
      return hasGelu(base) ? gelu(sum, 'tanh') : sum;
    });
  }

  /** base(x) and what the adapter adds to it, without the activation that may follow. */
  protected sumOf(x: Tensor): Tensor {
    return project(this.base, x).add(this.beside(this.dropped(x)));
  }

  /** What goes into A. */
  protected dropped(x: Tensor): Tensor {
    return this.training ? dropout(x, this.sizes.dropout) : x;
  }

  /** scaling * B A x, in x's dtype. */
  protected beside(x: Tensor): Tensor {
    const inner = this.lora_A.call(inDtype(x, this.lora_A.weight.dtype));
    return cast(this.lora_B.call(inner.mul(this.sizes.scaling)), x.dtype);
  }
}

const shapeOf = (base: Linear | PackedLinear): readonly [number, number] =>
  (base instanceof PackedLinear ? base.shape : base.weight.shape) as [number, number];

const hasGelu = (base: Linear | PackedLinear): boolean =>
  base instanceof PackedLinear ? base.hasGelu : base instanceof LinearGelu;

/** The linear layer without the activation that may follow it; null for `bias`: without it too. */
export function project(
  base: Linear | PackedLinear,
  x: Tensor,
  bias: Tensor | null = base.bias,
): Tensor {
  return base instanceof PackedLinear ? base.project(x, bias) : linear(x, base.weight, bias);
}

/** An adapter of a table: lora_embedding_A [r, rows], lora_embedding_B [channels, r]. */
export class LoraEmbedding extends LoraLayer<Embedding> {
  /** [r, rows]. */
  readonly lora_embedding_A: Parameter;
  /** [channels, r]. */
  readonly lora_embedding_B: Parameter;

  constructor(base: Embedding, sizes: LoraSizes) {
    super(base, sizes);
    const [rows, channels] = base.weight.shape as [number, number];
    const { r, init } = sizes;
    const startOfA = init === false ? normal(1) : zeros;
    this.lora_embedding_A = this.factor(new Parameter([r, rows], startOfA));
    this.lora_embedding_B = this.factor(new Parameter([channels, r], normal(1)));
  }

  /** The base's table, which a tied head reads itself: without the adapter. */
  get weight(): Parameter {
    return this.base.weight;
  }

  override get factors(): readonly Parameter[] {
    return [this.lora_embedding_A, this.lora_embedding_B];
  }

  override update(): Tensor {
    const [a, b] = this.factors.map((one) => cast(one, 'f32')) as [Tensor, Tensor];
    return b.mul(this.sizes.scaling).matmul(a).transpose(0, 1);
  }

  /** Whole numbers [...] to their rows [..., channels]. */
  override forward(index: Tensor): Tensor {
    const { base } = this;
    if (!this.isActive) return base.call(index);
    return scope(() => {
      const rows = base.call(index);
      const inner = this.looked(index);
      const beside = linear(inner.mul(this.sizes.scaling), this.lora_embedding_B);
      return this.finished(rows.add(cast(beside, rows.dtype)));
    });
  }

  /** The columns of A; that of padding has no gradient, as the table's row. */
  private looked(index: Tensor): Tensor {
    const columns = embedding(this.lora_embedding_A.transpose(0, 1), index);
    const { paddingIdx } = this.base;
    if (paddingIdx === null) return columns;
    return where(index.eq(paddingIdx).unsqueeze(-1), columns.detach(), columns);
  }

  /** What becomes of the rows with their update. */
  protected finished(rows: Tensor): Tensor {
    return rows;
  }
}

/** `base` with an adapter. Throws DS_ARGUMENT for a layer that takes none. */
export function adapted(name: string, base: Module, sizes: LoraSizes): LoraLayer {
  if (base instanceof Embedding) return new LoraEmbedding(base, sizes);
  if (base instanceof Linear || base instanceof PackedLinear) return new LoraLinear(base, sizes);
  throw new DsError({
    code: 'DS_ARGUMENT',
    op: `addLora ${name}`,
    expected: 'a Linear or an Embedding',
    got: `a ${base.constructor.name}`,
  });
}

// Defines the layers that compression puts in place of plain layers. They keep the names of the
// parameters.
import type { Embedding } from '../nn/embedding.js';
import { Linear, LinearGelu } from '../nn/linear.js';
import { type Field, Module } from '../nn/module.js';
import type { Parameter } from '../nn/parameter.js';
import { embedding, linear, linearGelu, scope, type Tensor, where } from '../tensor/index.js';
import type { InputTechnique, Technique, Values } from './technique.js';

/**
 * Computes its base's forward with the compressed weight and bias. The base is not a child: its
 * fields belong to this module. Source: DeepSpeed's basic_layer.py, which also defines the names of
 * masks and scores.
 */
abstract class CompressedLayer<Base extends Linear | Embedding> extends Module {
  readonly #base: Base;
  readonly #clock: StepClock;
  readonly #techniques: Technique[] = [];

  constructor(base: Base, clock: StepClock) {
    super();
    this.#base = base;
    this.#clock = clock;
    this.training = base.training;
  }

  /** The layer without compression. */
  get base(): Base {
    return this.#base;
  }

  /** The uncompressed weight, which is trained. */
  get weight(): Parameter {
    return this.base.weight;
  }

  /** Returns the techniques in the order in which they apply. */
  get techniques(): readonly Technique[] {
    return this.#techniques;
  }

  /** @internal Adds a technique, which applies after the others. */
  add(technique: Technique): void {
    this.#techniques.push(technique);
  }

  /** Returns the compressed values after `step` global steps. */
  valuesAt(step: number): Values {
    const { base } = this;
    const baseValues: Values = {
      weight: base.weight,
      bias: base instanceof Linear ? base.bias : null,
    };
    return this.#techniques
      .filter(({ offset }) => step >= offset)
      .reduce((values, technique) => technique.compress(values, step), baseValues);
  }

  /** The compressed values after the completed steps. */
  protected get values(): Values {
    return this.valuesAt(this.step);
  }

  /** Number of completed global steps. */
  protected get step(): number {
    return this.#clock.step;
  }

  /** @internal */
  protected override *fields(): Generator<[string, Field]> {
    yield* Module.fieldsOf(this.#base);
    yield* super.fields();
  }
}

/** A linear layer with techniques. */
export class CompressedLinear extends CompressedLayer<Linear> {
  /** Mask [outputs, inputs]: 1 for remaining weights. */
  sparse_pruning_mask: Tensor | null = null;
  /** The scores of weights, in their shape. */
  sparse_mask_scores: Parameter | null = null;
  /** Mask [outputs, 1]: 1 for remaining outputs. */
  row_pruning_mask: Tensor | null = null;
  /** The scores of outputs, [outputs, 1]. */
  row_mask_scores: Parameter | null = null;
  /** The scores of heads, [1, heads]. */
  head_pruning_scores: Parameter | null = null;
  /** @internal Compression of inputs; null: inputs are unchanged. */
  inputs: InputTechnique | null = null;

  /** The base's bias. */
  get bias(): Parameter | null {
    return this.base.bias;
  }

  /**
   * Maps [..., inputs] to [..., outputs]. Throws DS_SHAPE if x has another size in its last dim.
   */
  override forward(x: Tensor): Tensor {
    return scope(() => {
      const { weight, bias } = this.values;
      const compute = this.base instanceof LinearGelu ? linearGelu : linear;
      const { inputs } = this;
      const roundedInput = inputs && this.step >= inputs.offset ? inputs.compress(x) : x;
      return compute(roundedInput, weight, bias);
    });
  }
}

/** A table with techniques. */
export class CompressedEmbedding extends CompressedLayer<Embedding> {
  /** Looks up integers [...] and returns their rows [..., channels]. */
  override forward(index: Tensor): Tensor {
    return scope(() => {
      const rows = embedding(this.values.weight, index);
      const { paddingIdx } = this.base;
      if (paddingIdx === null) return rows;
      return where(index.eq(paddingIdx).unsqueeze(-1), rows.detach(), rows);
    });
  }
}

/** Returns the linear layers of `model` in its order, including the bases of compressed layers. */
export function listLinears(model: Module): Map<string, Linear> {
  const linears = new Map<string, Linear>();
  for (const [name, module] of model.namedModules()) {
    const layer = module instanceof CompressedLinear ? module.base : module;
    if (layer instanceof Linear) linears.set(name, layer);
  }
  return linears;
}

/**
 * Counts completed steps of the engine: 0 without an engine, and the last number after an engine
 * ends.
 */
export class StepClock {
  private read = (): number => 0;

  /** Number of completed global steps. */
  get step(): number {
    return this.read();
  }

  /** Reads steps with `read` until the returned function is called. */
  follow(read: () => number): () => void {
    this.read = read;
    return () => {
      const last = read();
      this.read = () => last;
    };
  }
}

// DoRA: adapters that change the directions of a weight's rows, and their lengths apart.
import { Embedding } from '../nn/embedding.js';
import { Linear } from '../nn/linear.js';
import type { Module } from '../nn/module.js';
import { PackedLinear } from '../nn/packed-linear.js';
import { Parameter } from '../nn/parameter.js';
import { cpu } from '../runtime/device.js';
import { statisticOf } from '../runtime/dtype.js';
import * as kernels from '../runtime/kernels.generated.js';
import { cast, customFunction, noGrad, scope, Tensor, to } from '../tensor/index.js';
import {
  adapted,
  LoraEmbedding,
  type LoraLayer,
  LoraLinear,
  type LoraSizes,
  project,
} from './lora-layer.js';

/** The dim along which a weight is summed for its lengths: 1 of [out, in], 0 of a table. */
type Along = 0 | 1;

/** The base's values in f32; what lies in files is read for this, and does not stay. */
function valuesOf(base: Module): Tensor {
  if (base instanceof PackedLinear) return base.values('f32');
  const { weight } = base as Linear | Embedding;
  if (weight.isMaterialized || !weight.stored) return cast(weight, 'f32');
  const read = Tensor.empty(weight.shape, weight.dtype, cpu());
  weight.writeInitial(read);
  return cast(read, 'f32');
}

/** A length of nothing at all, by which it can be divided. */
const LEAST = 1e-37;

function lengthsOf(values: Tensor, along: Along): Tensor {
  return values.square().sum(along).sqrt().clamp(LEAST);
}

/** Those of the weight with its update, f32: gradients take them for constants. */
function lengthsNow(layer: LoraLayer, along: Along): Tensor {
  return noGrad(() =>
    scope(() => {
      const values = valuesOf(layer.base);
      // Two of the weight's size in f32, and no third.
      const sum = to(layer.update(), values.device).add_(values);
      return sum.mul_(sum).sum(along).sqrt().clamp(LEAST);
    }),
  );
}

/** Starts as the lengths that there are, so that nothing changes at first. */
function magnitudeOf(layer: LoraLayer, count: number, along: Along): Parameter {
  return new Parameter([count], (out) =>
    noGrad(() => scope(() => kernels.copy({ in: to(lengthsNow(layer, along), out.device), out }))),
  );
}

/** values [.., C] times factor [C], in the dtype of the values; the product is in factor's. */
const scaled = customFunction({
  name: 'dora',
  forward: (context, values: Tensor, factor: Tensor) => {
    context.save(values, factor);
    return scope(() => cast(cast(values, factor.dtype).mul(factor), values.dtype));
  },
  backward: (context, given) => {
    if (!given) return null;
    const [values, factor] = context.saved as [Tensor, Tensor];
    const grad = cast(given, factor.dtype);
    const each = grad.mul(cast(values, factor.dtype)).reshape([-1, factor.numel]);
    return [cast(grad.mul(factor), values.dtype), each.sum(0)];
  },
});

/** magnitude / lengths, in at least f32: near 1, where fewer bits would not tell a step apart. */
function factorOf(magnitude: Parameter, lengths: Tensor): Tensor {
  const wide = statisticOf(magnitude.dtype);
  return cast(magnitude, wide).div(cast(lengths, wide));
}

/** Merging and its reverse, which needs the lengths that the merged weight no longer has. */
class Merger {
  #lengths: readonly number[] = [];

  constructor(private readonly along: Along) {}

  /** `sum` is the weight with its update. */
  merged(sum: Tensor, magnitude: Parameter): Tensor {
    const lengths = lengthsOf(sum, this.along);
    this.#lengths = lengths.toArray();
    return sum.mul(this.beside(factorOf(magnitude, lengths)));
  }

  /** The sum that was merged. */
  unmerged(merged: Tensor, magnitude: Parameter): Tensor {
    const lengths = Tensor.from(Float32Array.from(this.#lengths), { device: merged.device });
    return merged.div(this.beside(factorOf(magnitude, lengths)));
  }

  private beside(factor: Tensor): Tensor {
    return this.along === 1 ? factor.reshape([-1, 1]) : factor;
  }
}

/**
 * y = m / |W + s B A| * (W + s B A) x + b, where the lengths |..| of the rows are constants for the
 * gradients, and m is trained beside A and B; under dropout the base's own W x stays whole. Source:
 * Liu et al. 2024, section 4.3; PEFT's DoraLinearLayer.
 */
export class DoraLinear extends LoraLinear {
  /** [outputs]. */
  readonly lora_magnitude_vector: Parameter;
  /** Merges, and knows how to take apart what it has merged. */
  readonly #merger = new Merger(1);

  constructor(base: Linear | PackedLinear, sizes: LoraSizes) {
    super(base, sizes);
    const [outputs] = (base instanceof PackedLinear ? base : base.weight).shape as [number];
    this.lora_magnitude_vector = this.started(magnitudeOf(this, outputs, 1));
  }

  protected override sumOf(x: Tensor): Tensor {
    const { base, sizes } = this;
    const factor = factorOf(this.lora_magnitude_vector, lengthsNow(this, 1));
    const given = this.dropped(x);
    const plain = project(base, given, null);
    const turned = scaled(plain.add(this.beside(given)), factor);
    const isWhole = !this.training || sizes.dropout === 0;
    if (!isWhole) return project(base, x).sub(plain).add(turned);
    return base.bias ? turned.add(base.bias) : turned;
  }

  protected override mergedWith(before: Tensor): Tensor {
    return this.#merger.merged(super.mergedWith(before), this.lora_magnitude_vector);
  }

  protected override takenFrom(merged: Tensor): Tensor {
    return super.takenFrom(this.#merger.unmerged(merged, this.lora_magnitude_vector));
  }
}

/**
 * The same of a table, whose lengths are those of its columns. Source: PEFT's DoraEmbeddingLayer.
 */
export class DoraEmbedding extends LoraEmbedding {
  /** [channels]. */
  readonly lora_magnitude_vector: Parameter;
  /** Merges, and knows how to take apart what it has merged. */
  readonly #merger = new Merger(0);

  constructor(base: Embedding, sizes: LoraSizes) {
    super(base, sizes);
    const [, channels] = base.weight.shape as [number, number];
    this.lora_magnitude_vector = this.started(magnitudeOf(this, channels, 0));
  }

  protected override finished(rows: Tensor): Tensor {
    return scaled(rows, factorOf(this.lora_magnitude_vector, lengthsNow(this, 0)));
  }

  protected override mergedWith(before: Tensor): Tensor {
    return this.#merger.merged(super.mergedWith(before), this.lora_magnitude_vector);
  }

  protected override takenFrom(merged: Tensor): Tensor {
    return super.takenFrom(this.#merger.unmerged(merged, this.lora_magnitude_vector));
  }
}

/**
 * `base` with an adapter that has magnitudes. They are made of the base's values here and now:
 * those of a model in files are read once, layer by layer, and those that nobody has drawn yet are
 * drawn. Throws DS_ARGUMENT for a layer that takes none.
 */
export function withMagnitude(name: string, base: Module, sizes: LoraSizes): LoraLayer {
  if (base instanceof Embedding) return new DoraEmbedding(base, sizes);
  if (base instanceof Linear || base instanceof PackedLinear) return new DoraLinear(base, sizes);
  return adapted(name, base, sizes);
}

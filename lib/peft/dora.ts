// DoRA: adapters with a trained magnitude for each output of a weight.

import { Embedding } from '../nn/embedding.js';
import { Linear } from '../nn/linear.js';
import type { Module } from '../nn/module.js';
import { PackedLinear } from '../nn/packed-linear.js';
import { Parameter } from '../nn/parameter.js';
import { cpu } from '../runtime/device.js';
import { statisticOf } from '../runtime/dtype.js';
import * as kernels from '../runtime/kernels.generated.js';
import { leading } from '../runtime/required.js';
import { cast, customFunction, noGrad, scope, Tensor, to } from '../tensor/index.js';
import {
  createAdapter,
  LoraEmbedding,
  type LoraLayer,
  LoraLinear,
  type LoraSizes,
  project,
} from './lora-layer.js';

/** The dimension of the norm: 1 for a weight [out, in], 0 for an embedding table. */
type Along = 0 | 1;

/** Returns the base's weight in f32. Reads weights that are still in files without keeping them. */
function valuesOf(base: Module): Tensor {
  if (base instanceof PackedLinear) return base.values('f32');
  const { weight } = base as Linear | Embedding;
  if (weight.isMaterialized || !weight.stored) return cast(weight, 'f32');
  const read = Tensor.empty(weight.shape, weight.dtype, cpu());
  weight.writeInitial(read);
  return cast(read, 'f32');
}

/** Smallest norm, to avoid a division by 0. */
const MIN_NORM = 1e-37;

function lengthsOf(values: Tensor, along: Along): Tensor {
  return values.square().sum(along).sqrt().clamp(MIN_NORM);
}

/** Returns the norms of the updated weight in f32, without a gradient. */
function currentLengths(layer: LoraLayer, along: Along): Tensor {
  return noGrad(() =>
    scope(() => {
      const values = valuesOf(layer.base);
      // In-place operations limit temporaries to two f32 copies of the weight.
      const sum = to(layer.update(), values.device).add_(values);
      return sum.mul_(sum).sum(along).sqrt().clamp(MIN_NORM);
    }),
  );
}

/**
 * Returns a magnitude parameter. Its initial values are the present norms, so that the output is
 * unchanged.
 */
function createMagnitude(layer: LoraLayer, count: number, along: Along): Parameter {
  return new Parameter([count], (out) =>
    noGrad(() =>
      scope(() => kernels.copy({ in: to(currentLengths(layer, along), out.device), out })),
    ),
  );
}

/**
 * Multiplies values [.., C] by factor [C] in the factor's dtype; the result has the values' dtype.
 */
const scaleRows = customFunction({
  name: 'dora',
  forward: (context, values: Tensor, factor: Tensor) => {
    context.save(values, factor);
    return scope(() => cast(cast(values, factor.dtype).mul(factor), values.dtype));
  },
  backward: (context, gradient) => {
    if (!gradient) return null;
    const [values, factor] = leading(context.saved, 2);
    const grad = cast(gradient, factor.dtype);
    const each = grad.mul(cast(values, factor.dtype)).reshape([-1, factor.numel]);
    return [cast(grad.mul(factor), values.dtype), each.sum(0)];
  },
});

/**
 * Returns magnitude / norms in at least f32: the ratio is near 1, where bf16 is too coarse.
 */
function factorOf(magnitude: Parameter, lengths: Tensor): Tensor {
  const wide = statisticOf(magnitude.dtype);
  return cast(magnitude, wide).div(cast(lengths, wide));
}

/** Merges and unmerges. Unmerging needs the norms from before the merge. */
class Merger {
  #lengths: readonly number[] = [];

  constructor(private readonly along: Along) {}

  /** Returns the merged weight of `sum`, the weight with its update. */
  merged(sum: Tensor, magnitude: Parameter): Tensor {
    const lengths = lengthsOf(sum, this.along);
    this.#lengths = lengths.toArray();
    return sum.mul(this.broadcast(factorOf(magnitude, lengths)));
  }

  /** Returns the sum from a merged weight: reverses merged(). */
  unmerged(merged: Tensor, magnitude: Parameter): Tensor {
    const lengths = Tensor.from(Float32Array.from(this.#lengths), { device: merged.device });
    return merged.div(this.broadcast(factorOf(magnitude, lengths)));
  }

  private broadcast(factor: Tensor): Tensor {
    return this.along === 1 ? factor.reshape([-1, 1]) : factor;
  }
}

/**
 * A linear layer with a DoRA adapter: y = m / |W + s B A| * (W + s B A) x + b. The norms |..| of
 * the rows are constants for gradients; m is trained with A and B. Dropout applies only to the
 * adapter: the base's product W x sees all inputs. Source: Liu et al. 2024, section 4.3; PEFT's
 * DoraLinearLayer.
 */
export class DoraLinear extends LoraLinear {
  /** Trained magnitudes, [outputs]. */
  readonly lora_magnitude_vector: Parameter;
  /** Keeps the norms of a merge for unmerge(). */
  readonly #merger = new Merger(1);

  /** The magnitudes start as the lengths of the rows of `base`, so the output is unchanged. */
  constructor(base: Linear | PackedLinear, sizes: LoraSizes) {
    super(base, sizes);
    const [outputs] = leading((base instanceof PackedLinear ? base : base.weight).shape, 1);
    this.lora_magnitude_vector = this.startParameter(createMagnitude(this, outputs, 1));
  }

  protected override sumOf(x: Tensor): Tensor {
    const { base, sizes } = this;
    const factor = factorOf(this.lora_magnitude_vector, currentLengths(this, 1));
    const dropped = this.dropInput(x);
    const plain = project(base, dropped, null);
    const turned = scaleRows(plain.add(this.computeUpdate(dropped)), factor);
    const isWhole = !this.training || sizes.dropout === 0;
    if (!isWhole) return project(base, x).sub(plain).add(turned);
    return base.bias ? turned.add(base.bias) : turned;
  }

  protected override mergeInto(before: Tensor): Tensor {
    return this.#merger.merged(super.mergeInto(before), this.lora_magnitude_vector);
  }

  protected override subtractFrom(merged: Tensor): Tensor {
    return super.subtractFrom(this.#merger.unmerged(merged, this.lora_magnitude_vector));
  }
}

/** DoRA for an embedding table, with norms of its columns. Source: PEFT's DoraEmbeddingLayer. */
export class DoraEmbedding extends LoraEmbedding {
  /** Trained magnitudes, [channels]. */
  readonly lora_magnitude_vector: Parameter;
  /** Keeps the norms of a merge for unmerge(). */
  readonly #merger = new Merger(0);

  /** The magnitudes start as the lengths of the columns of `base`, so the output is unchanged. */
  constructor(base: Embedding, sizes: LoraSizes) {
    super(base, sizes);
    const [, channels] = leading(base.weight.shape, 2);
    this.lora_magnitude_vector = this.startParameter(createMagnitude(this, channels, 0));
  }

  protected override finishRows(rows: Tensor): Tensor {
    return scaleRows(rows, factorOf(this.lora_magnitude_vector, currentLengths(this, 0)));
  }

  protected override mergeInto(before: Tensor): Tensor {
    return this.#merger.merged(super.mergeInto(before), this.lora_magnitude_vector);
  }

  protected override subtractFrom(merged: Tensor): Tensor {
    return super.subtractFrom(this.#merger.unmerged(merged, this.lora_magnitude_vector));
  }
}

/**
 * Wraps `base` with a DoRA adapter. Magnitudes are computed now from the base's values. Values in
 * files are read once, layer by layer; uninitialized weights are initialized. Throws DS_ARGUMENT
 * for an unsupported layer.
 */
export function createDoraAdapter(name: string, base: Module, sizes: LoraSizes): LoraLayer {
  if (base instanceof Embedding) return new DoraEmbedding(base, sizes);
  if (base instanceof Linear || base instanceof PackedLinear) return new DoraLinear(base, sizes);
  return createAdapter(name, base, sizes);
}

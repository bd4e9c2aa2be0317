// A linear layer with several active adapters: their updates add up.

import type { Linear } from '../nn/linear.js';
import { PackedLinear } from '../nn/packed-linear.js';
import type { Parameter } from '../nn/parameter.js';
import { required } from '../runtime/required.js';
import { gelu, scope, type Tensor } from '../tensor/index.js';
import { hasGelu, LoraLayer, type LoraLinear, project } from './lora-layer.js';

/**
 * A linear layer y = base(x) + the sum of scaling * B A dropout(x) over adapters. The names of
 * factors are PEFT's.
 */
export class LoraSum extends LoraLayer<Linear | PackedLinear> {
  /** A of each adapter, by name. */
  readonly lora_A: Readonly<Record<string, Linear>>;
  /** B of each adapter. */
  readonly lora_B: Readonly<Record<string, Linear>>;
  readonly #parts: readonly LoraLinear[];

  /** The adapters have the same base layer. */
  constructor(parts: ReadonlyMap<string, LoraLinear>) {
    const [first] = parts.values();
    const { base, sizes } = required(first);
    super(base, sizes);
    this.#parts = [...parts.values()];
    this.lora_A = Object.fromEntries(Array.from(parts, ([name, linear]) => [name, linear.lora_A]));
    this.lora_B = Object.fromEntries(Array.from(parts, ([name, linear]) => [name, linear.lora_B]));
  }

  /** The adapters. */
  get parts(): readonly LoraLinear[] {
    return this.#parts;
  }

  override get weight(): Parameter {
    const { base } = this;
    return base instanceof PackedLinear ? base.stored : base.weight;
  }

  /** The base's bias. */
  get bias(): Parameter | null {
    return this.base.bias;
  }

  override get factors(): readonly Parameter[] {
    return this.#parts.flatMap(({ factors }) => factors);
  }

  override update(): Tensor {
    return this.#parts.map((part) => part.update()).reduce((sum, tensor) => sum.add(tensor));
  }

  /**
   * Maps [..., inputs] to [..., outputs]. Throws DS_SHAPE if x has another size in its last dim.
   */
  override forward(x: Tensor): Tensor {
    const { base } = this;
    if (!this.isActive) return base.call(x);
    for (const part of this.#parts) part.training = this.training;
    return scope(() => {
      const sum = this.#parts.reduce((all, part) => all.add(part.updateFor(x)), project(base, x));
      return hasGelu(base) ? gelu(sum, 'tanh') : sum;
    });
  }
}

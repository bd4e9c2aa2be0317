// The head of a language model that is its token embedding.
import type { Embedding } from '../nn/embedding.js';
import { Module } from '../nn/module.js';
import type { Parameter } from '../nn/parameter.js';
import { linearPadded, type Tensor } from '../tensor/index.js';

/** The head: the transposed token embedding. */
export class TiedHead extends Module {
  /** The weight [vocabSize, channels], the weight of the token table. */
  readonly weight: Parameter;

  /** @internal */
  readonly #embedding: Embedding;

  /** Shares the weight of `embedding`. */
  constructor(embedding: Embedding) {
    super();
    this.weight = embedding.weight;
    this.#embedding = embedding;
  }

  /** @internal The embedding that shares its weight. */
  get embedding(): Embedding {
    return this.#embedding;
  }

  /** Maps x [.., C] to logits [.., V]. */
  override forward(x: Tensor): Tensor {
    return linearPadded(x, this.weight);
  }
}

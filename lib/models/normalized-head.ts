// The head of Baichuan 2, whose weight rows are normalized to length 1.
import { normal } from '../nn/initializers.js';
import { Module } from '../nn/module.js';
import { Parameter } from '../nn/parameter.js';
import {
  type LinearCrossEntropyOptions,
  linearCrossEntropy,
  linearPadded,
  maximum,
  scope,
  type Tensor,
} from '../tensor/index.js';

/** Minimum norm, as in PyTorch's normalize(). */
export const MIN_NORM = 1e-12;

/** The products with the rows of a weight, each divided by its norm. Source: Baichuan 2. */
export class NormalizedHead extends Module {
  /** The weight [vocabSize, channels]. */
  readonly weight: Parameter;

  /** The weight is [vocabSize, channels]; `initializerRange` is its first standard deviation. */
  constructor(channels: number, vocabSize: number, initializerRange: number) {
    super();
    this.weight = new Parameter([vocabSize, channels], normal(initializerRange));
  }

  private get rows(): Tensor {
    const { weight } = this;
    const norms = weight
      .mul(weight)
      .sum({ dims: [1], keepDim: true })
      .sqrt();
    return weight.div(maximum(norms, MIN_NORM));
  }

  /** Maps x [.., channels] to logits [.., vocabSize]. */
  override forward(x: Tensor): Tensor {
    return scope(() => linearPadded(x, this.rows));
  }

  /** @internal See LanguageHead. */
  lossOf(x: Tensor, target: Tensor, options: LinearCrossEntropyOptions): Tensor {
    return scope(() => linearCrossEntropy(x, this.rows, target, options));
  }
}

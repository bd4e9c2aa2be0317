// Interface of a language model's head, and its loss without all logits.
import type { Module } from '../nn/module.js';
import { PackedLinear } from '../nn/packed-linear.js';
import type { Parameter } from '../nn/parameter.js';
import {
  type LinearCrossEntropyOptions,
  linearCrossEntropy,
  scope,
  type Tensor,
} from '../tensor/index.js';

/** Maps hidden states to the logits of tokens by its weight [vocabSize, channels]. */
export interface LanguageHead extends Module {
  /** The weight [vocabSize, channels]. */
  readonly weight: Parameter;
  /** Maps hidden states [.., channels] to logits [.., vocabSize]. */
  forward(x: Tensor): Tensor;
  /** Returns crossEntropy() of its logits, if the head has its own implementation. */
  lossOf?(x: Tensor, target: Tensor, options: LinearCrossEntropyOptions): Tensor;
}

/** Computes the loss of hidden states x [.., channels] and targets [..] through a head. */
export function headLoss(
  head: LanguageHead | PackedLinear,
  x: Tensor,
  targets: Tensor,
  options: LinearCrossEntropyOptions,
): Tensor {
  if (head instanceof PackedLinear) {
    return scope(() => linearCrossEntropy(x, head.values(x.dtype), targets, options));
  }
  return head.lossOf
    ? head.lossOf(x, targets, options)
    : linearCrossEntropy(x, head.weight, targets, options);
}

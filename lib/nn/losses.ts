// Losses as modules; each gives a scalar.
import { requireInteger } from '../runtime/require-number.js';
import { crossEntropy, mse, type Tensor } from '../tensor/index.js';
import { Module } from './module.js';

/** mean((x - target)^2). */
export class MSELoss extends Module {
  override forward(x: Tensor, target: Tensor): Tensor {
    return mse(x, target);
  }
}

/** Mean of -log softmax(logits)[target] over the rows whose target is not `ignoreIndex`. */
export class CrossEntropyLoss extends Module {
  /** Throws DS_ARGUMENT. */
  constructor(readonly ignoreIndex = -100) {
    super();
    requireInteger('CrossEntropyLoss ignoreIndex', ignoreIndex, Number.MIN_SAFE_INTEGER);
  }

  /** logits [.., V], target [..] i32 or i64. */
  override forward(logits: Tensor, target: Tensor): Tensor {
    return crossEntropy(logits, target, { ignoreIndex: this.ignoreIndex });
  }
}

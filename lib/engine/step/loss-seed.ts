// The gradient that a loss starts its backward with.
import * as kernels from '../../runtime/kernels.generated.js';
import { held, Tensor } from '../../tensor/index.js';

/** A held tensor like `loss`, each element `value`; the caller releases it. */
export function lossSeed(loss: Tensor, value: number): Tensor {
  const out = held(() => Tensor.emptyLike(loss));
  kernels.fill({ out, value });
  return out;
}

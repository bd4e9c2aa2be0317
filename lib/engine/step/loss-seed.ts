// The first gradient of a backward.
import * as kernels from '../../runtime/kernels.generated.js';
import { held, Tensor } from '../../tensor/index.js';

/** Returns a tensor like `loss` with `value` in each element. The caller releases it. */
export function lossSeed(loss: Tensor, value: number): Tensor {
  const out = held(() => Tensor.emptyLike(loss));
  kernels.fill({ out, value });
  return out;
}

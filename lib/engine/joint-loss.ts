// scaleJointLoss(): scales one loss of several engines, as in a GAN. This is a separate file, so
// that an import of the package does not load the engine.

import { DsError } from '../errors.js';
import { formatValue } from '../runtime/format-value.js';
import type { Tensor } from '../tensor/index.js';
import { requireTensor } from '../tensor/ops/shapes.js';
import type { Engine } from './engine.js';

/**
 * Returns `loss` times the smallest loss scale of the engines, for one loss.backward(). Afterwards,
 * call engines.map((engine) => engine.backwardEpilogue()).
 */
export function scaleJointLoss(loss: Tensor, engines: readonly Engine[]): Tensor {
  requireTensor('scaleJointLoss', loss);
  if (!Array.isArray(engines) || engines.length === 0) {
    throw new DsError({
      code: 'DS_ARGUMENT',
      op: 'scaleJointLoss',
      expected: 'a list of engines',
      got: formatValue(engines),
    });
  }
  const factor = Math.min(...engines.map(({ lossScale }) => lossScale));
  for (const engine of engines) engine.expectScaled(factor);
  return factor === 1 ? loss : loss.mul(factor);
}

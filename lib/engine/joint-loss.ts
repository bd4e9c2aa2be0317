// One loss over the outputs of several engines.
import type { Tensor } from '../tensor/index.js';
import type { Engine } from './engine.js';

/**
 * A loss over the outputs of several engines, scaled for one loss.backward(): by the smallest of
 * their loss scales. End the backward with engines.map((engine) => engine.backwardEpilogue()).
 */
export function scaleJointLoss(loss: Tensor, engines: readonly Engine[]): Tensor {
  const factor = Math.min(...engines.map(({ lossScale }) => lossScale));
  for (const engine of engines) engine.expectScaled(factor);
  return factor === 1 ? loss : loss.mul(factor);
}

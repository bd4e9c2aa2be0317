// The optimizer of an engine with zeroGrad().
import type { Optimizer } from '../../optim/optimizer.js';
import type { EngineParts } from '../engine-parts.js';

/** The optimizer of an engine, with the zeroGrad() of that engine. */
export interface EngineOptimizer extends Optimizer {
  /**
   * Drops the gradients since the last step(), like DeepSpeed's zero_grad(). Micro-batches still
   * count. Throws DS_AUTOGRAD between the backward() that completes a step and its step().
   */
  zeroGrad(): void;
}

/** Adds the engine's zeroGrad() to the optimizer until the engine is destroyed. */
export function zeroedBy({ optimizer, owned }: EngineParts, zeroGrad: () => void): EngineOptimizer {
  const property = { value: zeroGrad, configurable: true, writable: true };
  Object.defineProperty(optimizer, 'zeroGrad', property);
  owned.defer(() => delete (optimizer as Partial<EngineOptimizer>).zeroGrad);
  return optimizer as EngineOptimizer;
}

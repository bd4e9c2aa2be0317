// Engines without training (DeepSpeed's ZeRO-Inference): a placeholder optimizer.
import type { DeclaredState } from '../../optim/declared-state.js';
import type { Optimizer } from '../../optim/optimizer.js';
import type { ParamGroup } from '../../optim/param-groups.js';

/** An optimizer without groups: every parameter is frozen. */
export class NoOptimizer implements Optimizer {
  readonly name = 'no optimizer';
  readonly groups: ParamGroup[] = [];

  declareState(): DeclaredState {
    return {};
  }

  update(): void {}
}

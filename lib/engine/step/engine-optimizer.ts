// The optimizer of an engine with its zeroGrad(), and the options of engine.step().
import type { Optimizer } from '../../optim/optimizer.js';
import type { Metric } from '../../optim/reduce-on-plateau.js';
import type { ScheduleSet } from '../../optim/schedule-set.js';
import { type OptionNames, readOptions } from '../../runtime/options.js';
import type { EngineParts } from '../engine-parts.js';

/** Options of engine.step(). */
export interface EngineStepOptions {
  /**
   * What a ReduceLrOnPlateau observes after an update, as with DeepSpeed's lr_kwargs; the same on
   * every rank. Refused where no schedule observes it.
   */
  metrics?: Metric;
}

/** The optimizer of an engine. */
export interface EngineOptimizer extends Optimizer {
  /**
   * Drops the gradients since the last step(), as DeepSpeed's zero_grad(). Micro-batches stay
   * counted. Throws DS_AUTOGRAD between the backward() that completes a step and its step().
   */
  zeroGrad(): void;
}

const STEP_OPTIONS: OptionNames<EngineStepOptions> = { metrics: true };

/** The metric among the options of step(). Throws DS_ARGUMENT where no schedule observes it. */
export function metricsIn(given: EngineStepOptions, schedules: ScheduleSet): Metric | undefined {
  const { metrics } = readOptions('engine.step', given, STEP_OPTIONS);
  if (metrics !== undefined) schedules.requireMetric('engine.step', metrics);
  return metrics;
}

/** The optimizer with a zeroGrad() of the engine, which it has until the engine is destroyed. */
export function zeroedBy({ optimizer, owned }: EngineParts, zeroGrad: () => void): EngineOptimizer {
  const property = { value: zeroGrad, configurable: true, writable: true };
  Object.defineProperty(optimizer, 'zeroGrad', property);
  owned.defer(() => delete (optimizer as Partial<EngineOptimizer>).zeroGrad);
  return optimizer as EngineOptimizer;
}

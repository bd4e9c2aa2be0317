// The optimizer of an engine with zeroGrad(), and the options of engine.step().
import type { Optimizer } from '../../optim/optimizer.js';
import type { Metric } from '../../optim/reduce-on-plateau.js';
import type { ScheduleSet } from '../../optim/schedule-set.js';
import { type OptionNames, readOptions } from '../../runtime/options.js';
import type { EngineParts } from '../engine-parts.js';

/** Options of engine.step(). */
export interface EngineStepOptions {
  /**
   * The metric for ReduceLrOnPlateau after an update, like DeepSpeed's lr_kwargs; equal on every
   * rank. Throws DS_ARGUMENT if no schedule uses it.
   */
  metrics?: Metric;
}

/** The optimizer of an engine, with the zeroGrad() of that engine. */
export interface EngineOptimizer extends Optimizer {
  /**
   * Drops the gradients since the last step(), like DeepSpeed's zero_grad(). Micro-batches still
   * count. Throws DS_AUTOGRAD between the backward() that completes a step and its step().
   */
  zeroGrad(): void;
}

const STEP_OPTIONS: OptionNames<EngineStepOptions> = { metrics: true };

/** Returns the metric of the options of step(). Throws DS_ARGUMENT if no schedule uses it. */
export function metricsIn(given: EngineStepOptions, schedules: ScheduleSet): Metric | undefined {
  const { metrics } = readOptions('engine.step', given, STEP_OPTIONS);
  if (metrics !== undefined) schedules.requireMetric('engine.step', metrics);
  return metrics;
}

/** Adds the engine's zeroGrad() to the optimizer until the engine is destroyed. */
export function zeroedBy({ optimizer, owned }: EngineParts, zeroGrad: () => void): EngineOptimizer {
  const property = { value: zeroGrad, configurable: true, writable: true };
  Object.defineProperty(optimizer, 'zeroGrad', property);
  owned.defer(() => delete (optimizer as Partial<EngineOptimizer>).zeroGrad);
  return optimizer as EngineOptimizer;
}

// Checks the requirements of an optimizer against the configuration: summed gradients, whole
// parameters, and whole blocks of state.

import type { ResolvedConfig } from '../../../types/config.js';
import { type DeclaredState, declaredState, kindOf } from '../../optim/declared-state.js';
import { canExchange } from '../../optim/exchange.js';
import { canGather, canSum, type Optimizer } from '../../optim/optimizer.js';
import { isPart } from '../../runtime/box.js';
import { configError } from '../../runtime/input-errors.js';
import { type LayoutOptions, type ParameterShape, shardOf } from '../../zero/layout.js';
import { FROZEN, type Unit } from '../../zero/unit.js';
import type { Progress } from '../step/step-decisions.js';

/**
 * Returns a function that states whether ranks sum gradients in the present step. Returns null if
 * they do so in every step.
 */
export function sumsGradients(optimizer: Optimizer, progress: Progress): (() => boolean) | null {
  if (!canExchange(optimizer)) return null;
  return () => optimizer.sumsGradients(progress.appliedSteps + 1);
}

/**
 * Throws DS_CONFIG if ZeRO stages or pipeline stages divide tensors that the optimizer exchanges
 * whole.
 */
export function requireExchange(
  optimizer: Optimizer,
  config: ResolvedConfig,
  inStages: boolean,
): void {
  if (!canExchange(optimizer)) return;
  const { stage } = config.zero_optimization;
  const { name } = optimizer;
  if (stage !== 0) {
    throw configError(
      'zero_optimization.stage',
      `0 with ${name}, because ranks exchange moments of whole parameters`,
      `${stage}, which shards gradients and moments`,
      'Set it to 0, or use Adam, Lamb or SGD.',
    );
  }
  if (!inStages) return;
  throw configError(
    'optimizer.type',
    'an optimizer with summed gradients in a pipeline',
    `${name}, which keeps local gradients on each rank after the warm-up`,
    'Set pipeline.stages to 1, or use Adam, Lamb or SGD.',
  );
}

/**
 * Returns the layout of units for this optimizer. Parameters with the same kind of state are
 * adjacent. Parameters and shards begin at block boundaries.
 */
export function layoutFor(optimizer: Optimizer, shards: number): LayoutOptions {
  const stateOf = ({ group, shape }: ParameterShape): DeclaredState =>
    group === FROZEN ? {} : declaredState(optimizer, group, shape);
  return {
    shards,
    blockOf: (parameter) =>
      Math.max(1, ...Object.values(stateOf(parameter)).map(({ per }) => per ?? 1)),
    kindOf: (parameter) => kindOf(stateOf(parameter)),
  };
}

/** Throws DS_CONFIG if the optimizer needs whole parameters. `among` completes the error. */
export function requireElementwise(optimizer: Optimizer, among = 'with tensor parallelism'): void {
  if (!canSum(optimizer) && !canGather(optimizer) && !canExchange(optimizer)) return;
  throw configError(
    `optimizer ${optimizer.name}`,
    `an elementwise optimizer ${among}`,
    'an optimizer that needs whole parameters',
    'Use AdamW, Lion or SGD, or set tensor_parallel.autotp_size to 0.',
  );
}

/**
 * Throws DS_CONFIG if ranks hold parts of parameters (nn.Parameter.partOf), and `optimizer` saves
 * state that is not per element. A part has other blocks, rows and columns than the whole
 * parameter.
 */
export function requireUncutState(optimizer: Optimizer, units: readonly Unit[]): void {
  for (const { name, group, shape, region } of units.flatMap(({ layout }) => layout.entries)) {
    if (!isPart(region)) continue;
    const declared = Object.entries(declaredState(optimizer, group, shape));
    const [kept] = declared.find(([, { per, saved }]) => per !== 1 && saved) ?? [];
    if (kept === undefined) continue;
    throw configError(
      `optimizer ${optimizer.name}`,
      `whole parameters on every rank, for the state ${kept}`,
      `${name}, a part of [${region.whole.join(', ')}]`,
      'Use AdamW, which has only per-element state, or do not divide the model.',
    );
  }
}

interface Sharding {
  stage: number;
  /** Number of ranks in the shard group. */
  shards: number;
}

/**
 * Returns the name of the first parameter that a shard boundary divides and that `optimizer` needs
 * whole, or null.
 */
export function findCutParameter(
  optimizer: Optimizer,
  units: readonly Unit[],
  { stage, shards }: Sharding,
): string | null {
  if (stage === 0 || shards === 1) return null;
  for (const { layout } of units) {
    const shard = shardOf(layout.numel, 0, shards).numel;
    const owner = (element: number): number => Math.floor(element / shard);
    const cut = layout.entries.find(
      ({ group, offset, numel }) =>
        numel > 0 &&
        optimizer.needsWholeParameters?.(group) &&
        owner(offset) !== owner(offset + numel - 1),
    );
    if (cut) return cut.name;
  }
  return null;
}

/**
 * Throws DS_CONFIG on every rank if there is such a parameter, and the optimizer cannot exchange
 * sums or directions.
 */
export function requireWholeParameters(
  optimizer: Optimizer,
  units: readonly Unit[],
  sharding: Sharding,
): void {
  const cut = findCutParameter(optimizer, units, sharding);
  if (cut === null || canSum(optimizer) || canGather(optimizer)) return;
  const { stage, shards } = sharding;
  throw configError(
    'zero_optimization.stage',
    `0 with ${optimizer.name} on ${shards} ranks, because its update needs whole parameters`,
    `${stage}, which divides ${cut} between ranks`,
    'Set it to 0, train on one rank, or implement SummedOptimizer or GatheredOptimizer, like Lamb and Muon.',
  );
}

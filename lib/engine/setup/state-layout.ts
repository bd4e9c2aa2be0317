// Derives the layout of units from the declared state of an optimizer.
import { DsError } from '../../errors.js';
import { type DeclaredState, declaredState, kindOf } from '../../optim/declared-state.js';
import type { Optimizer } from '../../optim/optimizer.js';
import { isPart } from '../../runtime/box.js';
import type { LayoutOptions, ParameterShape } from '../../zero/layout.js';
import type { Unit } from '../../zero/unit.js';
import { FROZEN } from '../../zero/weight-unit.js';

/**
 * Places parameters with one kind of state together. Parameters and shards begin at block borders,
 * so blocks are equal for any number of ranks.
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

/**
 * Throws DS_CONFIG if the model is divided between ranks (nn.Parameter.partOf) and `optimizer`
 * stores more than per-element values. Blocks, rows and columns of a part differ from those of the
 * whole.
 */
export function requireUncutState(optimizer: Optimizer, units: readonly Unit[]): void {
  for (const { name, group, shape, region } of units.flatMap(({ layout }) => layout.entries)) {
    if (!isPart(region)) continue;
    const declared = Object.entries(declaredState(optimizer, group, shape));
    const [kept] = declared.find(([, { per, saved }]) => per !== 1 && saved) ?? [];
    if (kept === undefined) continue;
    throw new DsError({
      code: 'DS_CONFIG',
      op: `optimizer ${optimizer.name}`,
      expected: `whole parameters on every rank, for the state ${kept}`,
      got: `${name}, a part of [${region.whole.join(', ')}]`,
      hint: 'Use AdamW, which has only per-element state, or do not divide the model.',
    });
  }
}

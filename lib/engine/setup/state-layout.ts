// What the state that an optimizer declares asks of the layout of units.
import { DsError } from '../../errors.js';
import { type DeclaredState, declaredState, kindOf } from '../../optim/declared-state.js';
import type { Optimizer } from '../../optim/optimizer.js';
import { isPart } from '../../runtime/box.js';
import type { LayoutOptions, ParameterShape } from '../../zero/layout.js';
import type { Unit } from '../../zero/unit.js';
import { FROZEN } from '../../zero/weight-unit.js';

/**
 * Parameters of one kind of state lie together, and neither a parameter nor a shard begins within a
 * block of it, so that blocks are the same ones whatever the cut.
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
 * Throws DS_CONFIG where the model itself is cut between ranks (nn.Parameter.partOf) and
 * `optimizer` keeps more than values per element: of blocks, rows and columns of a part none has
 * the meaning that those of the whole would have.
 */
export function requireUncutState(optimizer: Optimizer, units: readonly Unit[]): void {
  for (const { name, group, shape, region } of units.flatMap(({ layout }) => layout.slots)) {
    if (!isPart(region)) continue;
    const declared = Object.entries(declaredState(optimizer, group, shape));
    const [kept] = declared.find(([, { per, saved }]) => per !== 1 && saved) ?? [];
    if (kept === undefined) continue;
    throw new DsError({
      code: 'DS_CONFIG',
      op: `optimizer ${optimizer.name}`,
      expected: `whole parameters on every rank of the model: it keeps their ${kept}`,
      got: `${name}, a part of [${region.whole.join(', ')}]`,
      hint: 'Take AdamW, whose state is by element, or do not cut the model.',
    });
  }
}

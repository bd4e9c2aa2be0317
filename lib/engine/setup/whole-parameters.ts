// Checks optimizers that need whole parameters against sharding.
import { DsError } from '../../errors.js';
import { canGather, canSum, type Optimizer } from '../../optim/optimizer.js';
import { shardOf } from '../../zero/layout.js';
import type { Unit } from '../../zero/unit.js';

interface Sharding {
  stage: number;
  /** Ranks of the shard group. */
  shards: number;
}

/**
 * Returns the first parameter that `stage` divides and `optimizer` needs whole, or null. Stages 1
 * to 3 divide units into equal parts, across parameter borders. Equal on every rank.
 */
export function cutParameter(
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
 * Throws DS_CONFIG on every rank if `sharding` divides a parameter that `optimizer` needs whole,
 * and the optimizer has no exchange between ranks.
 */
export function requireWholeParameters(
  optimizer: Optimizer,
  units: readonly Unit[],
  sharding: Sharding,
): void {
  const cut = cutParameter(optimizer, units, sharding);
  if (cut === null || canSum(optimizer) || canGather(optimizer)) return;
  const { stage, shards } = sharding;
  throw new DsError({
    code: 'DS_CONFIG',
    op: 'zero_optimization.stage',
    expected: `0 with ${optimizer.name} on ${shards} ranks, because its update needs whole parameters`,
    got: `${stage}, which divides ${cut} between ranks`,
    hint: 'Set it to 0, train on one rank, or implement SummedOptimizer or GatheredOptimizer, like Lamb and Muon.',
  });
}

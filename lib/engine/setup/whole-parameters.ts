// The rule that an optimizer which works by parameter gets no part of one.
import { DsError } from '../../errors.js';
import type { Optimizer } from '../../optim/optimizer.js';
import { shardOf } from '../../zero/layout.js';
import type { Unit } from '../../zero/unit.js';

/**
 * Throws DS_CONFIG, on every rank alike, where `stage` would cut a parameter that `optimizer` needs whole: stages 1 to 3
 * cut units into equal parts, wherever their parameters end.
 */
export function requireWholeParameters(
  optimizer: Optimizer,
  units: readonly Unit[],
  { stage, worldSize }: { stage: number; worldSize: number },
): void {
  if (stage === 0 || worldSize === 1) return;
  for (const { layout } of units) {
    const shard = shardOf(layout.numel, 0, worldSize).numel;
    const owner = (element: number): number => Math.floor(element / shard);
    const cut = layout.slots.find(
      ({ group, offset, numel }) =>
        numel > 0 &&
        optimizer.needsWholeParameters?.(group) &&
        owner(offset) !== owner(offset + numel - 1),
    );
    if (cut) throw refusal(optimizer.name, cut.name, stage, worldSize);
  }
}

function refusal(optimizer: string, parameter: string, stage: number, worldSize: number): DsError {
  return new DsError({
    code: 'DS_CONFIG',
    op: 'zero_optimization.stage',
    expected: `0 with ${optimizer} on ${worldSize} ranks: its update needs whole parameters`,
    got: `${stage}, which cuts ${parameter} between ranks`,
    hint: 'Set it to 0, train on one rank, or take an optimizer that works by element, such as AdamW.',
  });
}

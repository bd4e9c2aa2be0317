// Hooks on a unit's module: its weights come before they are read, and sharded ones go after.
import { beforeBackward, Tensor } from '../tensor/index.js';
import type { Partition } from '../zero/partition.js';
import type { Placement } from '../zero/placement.js';
import type { Stage } from '../zero/stage.js';
import type { GradientCollector } from './gradient-collector.js';

interface Attached {
  stage: Stage;
  placement: Placement;
  gradients: GradientCollector;
}

/**
 * Brings the weights before the module's forward. Where the stage shards weights, lets them go after it, and brings
 * them again when backward reaches what the module has returned. Returns functions that remove the hooks.
 */
export function attachUnit(
  partition: Partition,
  { stage, placement, gradients }: Attached,
): (() => void)[] {
  const { unit } = partition;
  const acquire = (): void => {
    placement.awaitWeights(partition);
    stage.acquire(unit);
  };
  const before = unit.module.registerForwardPreHook(acquire);
  if (!stage.shardsWeights) return [before];
  const after = unit.module.registerForwardHook((_module, _inputs, output) => {
    for (const tensor of tensorsIn(output)) beforeBackward(tensor, acquire);
    // A forward inside backward is a recomputation: its backward follows at once.
    if (!gradients.inBackward) stage.release(unit);
  });
  return [before, after];
}

/** The tensors in what a module has returned: itself, or the elements of a list or an object. */
function tensorsIn(output: unknown): Tensor[] {
  if (output instanceof Tensor) return [output];
  const parts = typeof output === 'object' && output !== null ? Object.values(output) : [];
  return parts.filter((part) => part instanceof Tensor);
}

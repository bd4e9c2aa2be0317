// From the optimizer and what ranks hold of parameters to the way in which updates go over the partitions.
import { canGather, canSum, type Optimizer } from '../../optim/optimizer.js';
import type { Collectives } from '../../zero/collectives.js';
import { GatheredUpdates } from '../../zero/gathered-updates.js';
import { isOpen, type Placement } from '../../zero/placement.js';
import { type Side, SplitPlacement } from '../../zero/split-placement.js';
import type { Stage } from '../../zero/stage.js';
import { SummedUpdates } from '../../zero/summed-updates.js';
import { DirectUpdates, SuccessiveUpdates, type Updater } from '../../zero/updater.js';
import { cutParameter } from './whole-parameters.js';

export interface UpdateOptions {
  /** Number of the ZeRO stage. */
  stage: number;
  /** The ranks that train together; null for one rank. */
  group: Collectives | null;
}

/** The updater of the partitions of `stage`, which `placement` keeps. */
export function buildUpdater(
  optimizer: Optimizer,
  placement: Placement,
  { partitions }: Stage,
  options: UpdateOptions,
): Updater {
  if (!(placement instanceof SplitPlacement)) {
    return updaterOf(optimizer, { placement, partitions }, options);
  }
  return new SuccessiveUpdates(
    placement.sides(partitions).map((side) => updaterOf(optimizer, side, options)),
  );
}

function updaterOf(
  optimizer: Optimizer,
  { placement, partitions }: Side,
  { stage, group }: UpdateOptions,
): Updater {
  if (!group || !isOpen(placement)) return new DirectUpdates(placement);
  const units = partitions.map(({ unit }) => unit);
  const cut = cutParameter(optimizer, units, { stage, worldSize: group.size });
  if (cut === null) return new DirectUpdates(placement);
  const parts = { placement, partitions, group };
  if (canGather(optimizer)) return new GatheredUpdates(optimizer, parts);
  if (canSum(optimizer)) return new SummedUpdates(optimizer, parts);
  return new DirectUpdates(placement);
}

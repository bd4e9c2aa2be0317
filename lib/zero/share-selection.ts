// Selects the partitions of a share of the optimizer state.
import type { Partition } from './shard.js';

/**
 * Selects partitions with about `share` of all elements, spread evenly over the forward, so that
 * two processors work in parallel. The first one is selected if it is not larger than the share:
 * its gradient comes last and its weights are needed first.
 */
export function evenlySpread(
  partitions: readonly Partition[],
  share: number,
): ReadonlySet<Partition> {
  const chosen = new Set<Partition>();
  const total = partitions.reduce((sum, { numel }) => sum + numel, 0);
  const first = partitions[0]?.numel ?? 0;
  let owed = first <= share * total ? Math.max(0, (0.5 - share) * first) : 0;
  for (const partition of partitions) {
    owed += share * partition.numel;
    if (owed < partition.numel / 2) continue;
    owed -= partition.numel;
    chosen.add(partition);
  }
  return chosen;
}

/**
 * Selects the partitions with state on the device: the first ones in forward order, up to `share`
 * of all elements. A host update of these could not overlap with other work. Source: DeepSpeed's
 * offload_optimizer.ratio (ZeRO-Offload++, "Twin-Flow").
 */
export function firstInForward(
  partitions: readonly Partition[],
  share: number,
): ReadonlySet<Partition> {
  const total = partitions.reduce((sum, { numel }) => sum + numel, 0);
  const chosen = new Set<Partition>();
  let taken = 0;
  for (const partition of partitions) {
    taken += partition.numel;
    if (taken > share * total) break;
    chosen.add(partition);
  }
  return chosen;
}

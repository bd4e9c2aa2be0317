// Moves a model into units: parameters become views of flat weights, their values become master
// weights.

import { sliceFlat } from '../tensor/flat.js';
import type { Tensor } from '../tensor/index.js';
import { type Collectives, takeOver } from './collectives.js';
import type { LayoutEntry, Range } from './layout.js';
import type { OptimizerState } from './optimizer-state.js';
import type { Partition, WeightShard } from './shard.js';
import type { ZeroStages } from './stage.js';
import type { InitialValues, WeightUnit } from './weight-unit.js';

/**
 * Every rank starts with the values of the first rank in each group of `alikeOf`, one group after
 * another, for frozen units too. Values from files, which are equal on all ranks, are read by each
 * rank itself; with shards, only its own part. Blocks until all values are in place. Temporary
 * device memory: one unit, and one parameter in f32.
 */
export function adoptModel(
  stage: ZeroStages,
  state: OptimizerState,
  alikeOf: (unit: WeightUnit, entry: LayoutEntry) => readonly Collectives[],
): void {
  const keptOf = ({ unit, range }: WeightShard): Range =>
    stage.shardsWeights ? range : { offset: 0, numel: unit.layout.numel };
  const broadcast = (unit: WeightUnit, { entry, values, isStored }: InitialValues): void => {
    if (isStored) return;
    for (const group of alikeOf(unit, entry)) takeOver(group, values);
  };
  for (const partition of stage.partitions) {
    state.adopt(partition);
    stage.adopting(partition.unit);
    partition.unit.adopt(keptOf(partition), (initial) => {
      broadcast(partition.unit, initial);
      writeFragments(state, partition, initial);
    });
    stage.adopted(partition);
  }
  for (const shard of stage.frozen) {
    stage.adopting(shard.unit);
    shard.unit.adopt(keptOf(shard), (initial) => broadcast(shard.unit, initial));
    stage.adopted(shard);
  }
  state.synchronize();
}

/**
 * Writes the master weights of this rank's part of a parameter. `values`: f32 on the device, the
 * whole parameter or its elements from `from` on.
 */
export function writeFragments(
  state: OptimizerState,
  partition: Partition,
  { entry, values, from = 0 }: { entry: LayoutEntry; values: Tensor; from?: number },
): void {
  for (const fragment of partition.fragments) {
    if (fragment.entry !== entry) continue;
    const slice = sliceFlat(values, { offset: fragment.from - from, numel: fragment.numel });
    state.writeMaster(partition, fragment, slice);
    slice.release();
  }
}

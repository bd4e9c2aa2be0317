// Moves the parameters of a model into ZeRO units before the first step. Each parameter becomes a
// view of its unit's flat weights. Its f32 values become master weights.

import { isFloating } from '../runtime/dtype.js';
import * as kernels from '../runtime/kernels.generated.js';
import { sliceFlat } from '../tensor/flat.js';
import { held, Tensor } from '../tensor/index.js';
import { type LayoutEntry, overlap, type Range } from './layout.js';
import type { OptimizerState } from './optimizer-state.js';
import type { Partition, WeightShard } from './partition.js';
import type { ZeroStages } from './stage.js';
import type { WeightUnit } from './unit.js';
import { broadcastValues, type Collectives } from './wire.js';

/** The initial values of a parameter, or of the elements of it that this rank needs. */
interface InitialValues {
  entry: LayoutEntry;
  /**
   * On the device, in f32 if the unit is floating, else in the unit's dtype. A whole parameter has
   * its shape, a part is flat.
   */
  values: Tensor;
  /** Index of the first element of `values` in the parameter. */
  firstElement: number;
  /** Whether each rank reads the values from a file. If not, one rank broadcasts them. */
  isStored: boolean;
}

/**
 * Fills weights and master weights of all partitions, and the weights of frozen units.
 * `sourceGroupsOf` returns the groups of ranks that must start with equal values: the first rank of
 * each group broadcasts its values. Values from a file are not broadcast, because each rank reads
 * them itself (at stage 3 only its own shard).
 *
 * Blocks until all values are in place. Temporary device memory: one unit, and one parameter in
 * f32.
 */
export function adoptModel(
  stage: ZeroStages,
  state: OptimizerState,
  sourceGroupsOf: (unit: WeightUnit, entry: LayoutEntry) => readonly Collectives[],
): void {
  const adopt = (shard: WeightShard, onInitial: (initial: InitialValues) => void): void => {
    const { unit, range } = shard;
    const needed = stage.shardsWeights ? range : { offset: 0, numel: unit.layout.numel };
    stage.prepareUnit(unit);
    for (const entry of unit.layout.entries) {
      writeInitial(unit, entry, needed, (initial) => {
        const groups = initial.isStored ? [] : sourceGroupsOf(unit, entry);
        for (const group of groups) broadcastValues(group, initial.values);
        onInitial(initial);
      });
      unit.adoptParameter(entry);
    }
    stage.adoptShard(shard);
  };
  for (const partition of stage.partitions) {
    state.adopt(partition);
    adopt(partition, (initial) => writeFragments(state, partition, initial));
  }
  for (const shard of stage.frozen) adopt(shard, () => {});
  state.synchronize();
}

/**
 * Passes the initial values of a parameter to `onInitial`, then writes them to the unit's flat
 * weights, rounded to the unit's dtype. Of values from a file, it reads only the elements in
 * `needed`; the other weights stay undefined.
 */
function writeInitial(
  unit: WeightUnit,
  entry: LayoutEntry,
  needed: Range,
  onInitial: (initial: InitialValues) => void,
): void {
  const parameter = unit.parameterOf(entry);
  const isStored = parameter.stored !== null;
  const { offset, numel } = isStored ? overlap(entry, needed) : entry;
  if (numel === 0) return;
  const shape = numel === entry.numel ? entry.shape : [numel];
  const dtype = isFloating(unit.dtype) ? 'f32' : unit.dtype;
  const values = held(() => Tensor.empty(shape, dtype, unit.device));
  const firstElement = offset - entry.offset;
  parameter.writeInitial(values, firstElement);
  onInitial({ entry, values, firstElement, isStored });
  const slice = sliceFlat(unit.weights, { offset, numel }, shape);
  kernels.copy({ in: values, out: slice });
  values.release();
  slice.release();
}

/**
 * Writes the fragments of `entry` that this rank updates into its master weights. `values` is f32
 * on the device and begins at element `firstElement` of the parameter.
 */
export function writeFragments(
  state: OptimizerState,
  partition: Partition,
  {
    entry,
    values,
    firstElement = 0,
  }: { entry: LayoutEntry; values: Tensor; firstElement?: number },
): void {
  for (const fragment of partition.fragments) {
    if (fragment.entry !== entry) continue;
    const slice = sliceFlat(values, {
      offset: fragment.from - firstElement,
      numel: fragment.numel,
    });
    state.writeMaster(partition, fragment, slice);
    slice.release();
  }
}

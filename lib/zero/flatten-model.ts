// Moves a model into units: parameters become views of flat weights, their values become master
// weights.

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

/** The initial values of a parameter, as far as this rank needs them. */
interface InitialValues {
  entry: LayoutEntry;
  /** On the device; f32 if floating. For stored values: the part of this rank, flat. */
  values: Tensor;
  /** Index of the first element in `values`, from the parameter's start. */
  firstElement: number;
  /** Whether every rank reads them from a file; else one rank sends them. */
  isStored: boolean;
}

/**
 * Every rank starts with the values of the first rank in each group of `sourceGroupsOf`. Values
 * from files are read by each rank itself; with shards, only its own part. Blocks until all values
 * are in place. Temporary device memory: one unit, and one parameter in f32.
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
 * Writes the values of a parameter into the flat weights, rounded from f32 if floating, after
 * `onInitial`. From files, only the values in `needed` are read; the rest is undefined.
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
 * Writes this rank's part of `values` into its state: f32 on the device, from element
 * `firstElement` of the parameter on.
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

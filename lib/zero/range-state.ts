// The optimizer state of one unit: a set of flat f32 tensors per optimizer group, in memory of the placement's choice.
import type { Optimizer } from '../optim/optimizer.js';
import type { DType } from '../runtime/dtype.js';
import type { Tensor } from '../tensor/index.js';
import type { GroupRange, Slot, UnitLayout } from './layout.js';
import { sliceFlat } from './unit.js';

/** Memory of a placement: a held tensor of `shape`, each element `value`. */
export type Allocate = (shape: readonly number[], dtype: DType, value: number) => Tensor;

/** State of one group's range of a unit. Owned by the placement that made it. */
export interface RangeState {
  readonly range: GroupRange;
  /** [range.numel] f32 by name. */
  readonly state: Readonly<Record<string, Tensor>>;
  /** [places + 1] i64, see UpdateTensors. */
  readonly starts: Tensor;
}

/** Makes the initial state of every range of a unit. */
export function allocateState(
  { groups }: UnitLayout,
  optimizer: Optimizer,
  allocate: Allocate,
): RangeState[] {
  return groups.map((range) => ({
    range,
    state: Object.fromEntries(
      Object.entries(optimizer.initialState(range.group)).map(([name, value]) => [
        name,
        allocate([range.numel], 'f32', value),
      ]),
    ),
    starts: startsOf(range, allocate),
  }));
}

function startsOf({ places, numel }: GroupRange, allocate: Allocate): Tensor {
  const starts = allocate([places.length + 1], 'i64', 0);
  const values = [...places.map(({ offset }) => offset), numel];
  starts.buffer.write(0, BigInt64Array.from(values, BigInt), starts.device.compute);
  return starts;
}

/** One parameter's part of the state called `name`; the caller releases it. */
export function stateSlice(ranges: readonly RangeState[], slot: Slot, name: string): Tensor {
  const { range, state } = ranges.find((one) => one.range.group === slot.group) as RangeState;
  const place = { offset: slot.offset - range.offset, numel: slot.numel };
  return sliceFlat(state[name] as Tensor, place, slot.shape);
}

/** Every tensor of the state. */
export function stateTensors(ranges: readonly RangeState[]): Tensor[] {
  return ranges.flatMap(({ state, starts }) => [...Object.values(state), starts]);
}

// The optimizer state of a partition: flat tensors per range, by the optimizer's declaration.

import { declaredState, portionOf, type StateTensor } from '../../optim/declared-state.js';
import type { Optimizer, ParameterPlace } from '../../optim/optimizer.js';
import type { DType } from '../../runtime/dtype.js';
import { required } from '../../runtime/required.js';
import { numel as sizeOf } from '../../runtime/view.js';
import { sliceFlat } from '../../tensor/flat.js';
import type { Tensor } from '../../tensor/index.js';
import type { Fragment, GroupRange, Range } from '../layout.js';
import { type Partition, sliceFragment } from '../unit.js';

/** Allocates state: a tensor of `shape` with `value` in each element, with a reference. */
export type Allocate = (shape: readonly number[], dtype: DType, value: number) => Tensor;

export interface RangeState {
  readonly range: GroupRange;
  /** State tensors by name: see UpdateTensors. */
  readonly state: Readonly<Record<string, Tensor>>;
  /** Sums by round: see UpdateTensors. */
  readonly sums: readonly Tensor[];
  /** [places + 1] i64: see UpdateTensors. */
  readonly starts: Tensor;
}

/** Creates the initial state of every range of a partition. */
export function allocateState(
  { groups }: Partition,
  optimizer: Optimizer,
  allocate: Allocate,
): RangeState[] {
  return groups.map((range) => ({
    range,
    state: Object.fromEntries(
      stateSizes(range, optimizer).map(({ name, numel, dtype, initial }) => {
        return [name, allocate([numel], dtype, initial)];
      }),
    ),
    ...allocateTables(range, optimizer, allocate),
  }));
}

/** Allocates the tables that updates of a range need in addition to state. */
export function allocateTables(
  range: GroupRange,
  optimizer: Optimizer,
  allocate: Allocate,
): Pick<RangeState, 'sums' | 'starts'> {
  return {
    sums: sumSizes(range, optimizer).map((size) => allocate([size], 'f64', 0)),
    starts: startsOf(range, allocate),
  };
}

/** A flat tensor of a range's state: its number of elements and their initial value. */
interface StateSize extends Pick<StateTensor, 'dtype' | 'initial'> {
  readonly name: string;
  readonly numel: number;
}

/** Returns the flat state tensors of `optimizer` for a range. */
export function stateSizes(range: GroupRange, optimizer: Optimizer): StateSize[] {
  const declared = declaredState(optimizer, range.group, range.like);
  return Object.entries(declared).map(([name, { per, dtype, initial }]) => {
    const numel = per === null ? sizeOfWhole(range, optimizer, name) : Math.ceil(range.numel / per);
    return { name, dtype, initial, numel };
  });
}

/** Returns the elements of a per-parameter state, over all parameters of a range. */
function sizeOfWhole({ group, places }: GroupRange, optimizer: Optimizer, name: string): number {
  return places.reduce((sum, { shape }) => {
    return sum + sizeOf(required(declaredState(optimizer, group, shape)[name]).shape);
  }, 0);
}

export function sumSizes({ group, places }: GroupRange, optimizer: Optimizer): number[] {
  const sizes: number[] = [];
  for (const { shape } of places) {
    const counts = optimizer.sumsPerRound?.(group, shape) ?? [];
    counts.forEach((count, round) => {
      sizes[round] = (sizes[round] ?? 0) + count;
    });
  }
  return sizes;
}

function startsOf({ places, numel }: GroupRange, allocate: Allocate): Tensor {
  const starts = allocate([places.length + 1], 'i64', 0);
  const values = [...places.map(({ offset }) => offset), numel];
  starts.buffer.write(0, BigInt64Array.from(values, BigInt), starts.device.compute);
  return starts;
}

interface KeptState {
  readonly optimizer: Optimizer;
  readonly master: Tensor;
  readonly ranges: readonly RangeState[];
}

/**
 * Returns a fragment's part of the masters (name "master") or of the state `name`, in the
 * parameter's shape if it is whole. The caller releases it.
 */
export function namedFragment(
  { optimizer, master, ranges }: KeptState,
  fragment: Fragment,
  name: string,
): Tensor {
  if (name === 'master') return sliceFragment(master, fragment);
  const groups = ranges.map(({ range }) => range);
  const { range, place, shape } = placeInState({ optimizer, groups }, fragment, name);
  const { state } = required(ranges.find((state) => state.range === range));
  return sliceFlat(required(state[name]), place, shape);
}

/** The location of a fragment's part of a state in the flat tensor of its range. */
interface PlaceInState {
  readonly range: GroupRange;
  readonly place: Range;
  /** The declared shape if the part is whole, else flat. */
  readonly shape: readonly number[];
  readonly declared: StateTensor;
}

/** Returns the location of a fragment's part of the state `name` in the ranges of its partition. */
export function placeInState(
  { optimizer, groups }: { optimizer: Optimizer; groups: readonly GroupRange[] },
  fragment: Fragment,
  name: string,
): PlaceInState {
  const { entry, offset } = fragment;
  const range = required(
    groups.find((group) => offset >= group.offset && offset < group.offset + group.numel),
  );
  const declared = required(declaredState(optimizer, entry.group, entry.shape)[name]);
  const { numel } = portionOf(declared, fragment);
  const first =
    declared.per === null
      ? startOfWhole({ optimizer, range, name }, entry.name)
      : Math.ceil((offset - range.offset) / declared.per);
  const shape = numel === sizeOf(declared.shape) ? declared.shape : [numel];
  return { range, place: { offset: first, numel }, shape, declared };
}

function startOfWhole(
  { optimizer, range, name }: { optimizer: Optimizer; range: GroupRange; name: string },
  parameter: string,
): number {
  const index = range.places.findIndex((place) => place.name === parameter);
  const before: readonly ParameterPlace[] = range.places.slice(0, index);
  return sizeOfWhole({ ...range, places: before }, optimizer, name);
}

export function stateTensors(ranges: readonly RangeState[]): Tensor[] {
  return ranges.flatMap(({ state, sums, starts }) => [...Object.values(state), ...sums, starts]);
}

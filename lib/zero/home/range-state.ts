// The optimizer state of one partition: flat tensors per range, as the optimizer declares them, in memory of the home's choice.
import { declaredState, portionOf, type StateTensor } from '../../optim/declared-state.js';
import type { Optimizer, ParameterPlace } from '../../optim/optimizer.js';
import type { DType } from '../../runtime/dtype.js';
import { numel as sizeOf } from '../../runtime/view.js';
import type { Tensor } from '../../tensor/index.js';
import { sliceFlat } from '../flat.js';
import type { GroupRange, Piece } from '../layout.js';
import type { Partition } from '../partition.js';

/** Memory of a home: a held tensor of `shape`, each element `value`. */
export type Allocate = (shape: readonly number[], dtype: DType, value: number) => Tensor;

/** State of one range of a partition. Owned by the home that made it. */
export interface RangeState {
  readonly range: GroupRange;
  /** By name, see UpdateTensors. */
  readonly state: Readonly<Record<string, Tensor>>;
  /** By round, see UpdateTensors. */
  readonly sums: readonly Tensor[];
  /** [places + 1] i64, see UpdateTensors. */
  readonly starts: Tensor;
}

/** Makes the initial state of every range of a partition. */
export function allocateState(
  { groups }: Partition,
  optimizer: Optimizer,
  allocate: Allocate,
): RangeState[] {
  return groups.map((range) => ({
    range,
    state: stateOf(range, optimizer, allocate),
    sums: sumSizes(range, optimizer).map((size) => allocate([size], 'f64', 0)),
    starts: startsOf(range, allocate),
  }));
}

function stateOf(
  range: GroupRange,
  optimizer: Optimizer,
  allocate: Allocate,
): Record<string, Tensor> {
  const declared = declaredState(optimizer, range.group, range.like);
  const named = Object.entries(declared).map(([name, { per, dtype, initial }]) => {
    const size = per === null ? sizeOfWhole(range, optimizer, name) : Math.ceil(range.numel / per);
    return [name, allocate([size], dtype, initial)];
  });
  return Object.fromEntries(named);
}

/** Elements of a state that is of whole parameters, for all places together. */
function sizeOfWhole({ group, places }: GroupRange, optimizer: Optimizer, name: string): number {
  return places.reduce((sum, { shape }) => {
    return sum + sizeOf((declaredState(optimizer, group, shape)[name] as StateTensor).shape);
  }, 0);
}

/** Sums over all places together, by round. */
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

/** What a piece of state is taken from. */
export interface KeptState {
  readonly optimizer: Optimizer;
  readonly master: Tensor;
  readonly ranges: readonly RangeState[];
}

/**
 * A piece's part of the master weights (name "master") or of the state called `name`, see portionOf(); in its shape
 * where it is all of it, else flat. The caller releases it.
 */
export function namedPiece(
  { optimizer, master, ranges }: KeptState,
  piece: Piece,
  name: string,
): Tensor {
  if (name === 'master') return slicePiece(master, piece);
  const { slot, offset } = piece;
  const { range, state } = ranges.find(
    (one) => offset >= one.range.offset && offset < one.range.offset + one.range.numel,
  ) as RangeState;
  const flat = state[name] as Tensor;
  const declared = declaredState(optimizer, slot.group, slot.shape)[name] as StateTensor;
  const { numel } = portionOf(declared, piece);
  const first =
    declared.per === null
      ? startOfWhole({ optimizer, range, name }, slot.name)
      : Math.ceil((offset - range.offset) / declared.per);
  const isAll = numel === sizeOf(declared.shape);
  return sliceFlat(flat, { offset: first, numel }, isAll ? declared.shape : [numel]);
}

function startOfWhole(
  { optimizer, range, name }: { optimizer: Optimizer; range: GroupRange; name: string },
  parameter: string,
): number {
  const index = range.places.findIndex((place) => place.name === parameter);
  const before: readonly ParameterPlace[] = range.places.slice(0, index);
  return sizeOfWhole({ ...range, places: before }, optimizer, name);
}

/** A piece of a flat tensor that starts where the partition does; a whole parameter has its shape. */
export function slicePiece(flat: Tensor, { slot, offset, numel }: Piece): Tensor {
  return sliceFlat(flat, { offset, numel }, numel === slot.numel ? slot.shape : [numel]);
}

/** Every tensor of the state. */
export function stateTensors(ranges: readonly RangeState[]): Tensor[] {
  return ranges.flatMap(({ state, sums, starts }) => [...Object.values(state), ...sums, starts]);
}

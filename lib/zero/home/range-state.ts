// The optimizer state of one partition: a set of flat f32 tensors per optimizer group, in memory of the home's choice.
import type { Optimizer } from '../../optim/optimizer.js';
import type { DType } from '../../runtime/dtype.js';
import type { Tensor } from '../../tensor/index.js';
import { sliceFlat } from '../flat.js';
import type { GroupRange, Piece } from '../layout.js';
import type { Partition } from '../partition.js';

/** Memory of a home: a held tensor of `shape`, each element `value`. */
export type Allocate = (shape: readonly number[], dtype: DType, value: number) => Tensor;

/** State of one group's range of a partition. Owned by the home that made it. */
export interface RangeState {
  readonly range: GroupRange;
  /** [range.numel] f32 by name. */
  readonly state: Readonly<Record<string, Tensor>>;
  /** [places] f32 by name, see Optimizer.initialScalars. */
  readonly scalars: Readonly<Record<string, Tensor>>;
  /** [places, n] f64, see Optimizer.sumsPerParameter; null where n is 0. */
  readonly sums: Tensor | null;
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
    state: allocateEach(optimizer.initialState(range.group), range.numel, allocate),
    scalars: allocateEach(
      optimizer.initialScalars?.(range.group) ?? {},
      range.places.length,
      allocate,
    ),
    sums: sumsOf(range, optimizer, allocate),
    starts: startsOf(range, allocate),
  }));
}

function allocateEach(
  values: Readonly<Record<string, number>>,
  numel: number,
  allocate: Allocate,
): Record<string, Tensor> {
  const named = Object.entries(values);
  return Object.fromEntries(named.map(([name, value]) => [name, allocate([numel], 'f32', value)]));
}

function sumsOf(
  { group, places }: GroupRange,
  optimizer: Optimizer,
  allocate: Allocate,
): Tensor | null {
  const count = optimizer.sumsPerParameter?.(group) ?? 0;
  return count > 0 ? allocate([places.length, count], 'f64', 0) : null;
}

function startsOf({ places, numel }: GroupRange, allocate: Allocate): Tensor {
  const starts = allocate([places.length + 1], 'i64', 0);
  const values = [...places.map(({ offset }) => offset), numel];
  starts.buffer.write(0, BigInt64Array.from(values, BigInt), starts.device.compute);
  return starts;
}

/** A piece's part of the master weights (name "master") or of the state called `name`; the caller releases it. */
export function namedPiece(
  { master, ranges }: { master: Tensor; ranges: readonly RangeState[] },
  piece: Piece,
  name: string,
): Tensor {
  if (name === 'master') return slicePiece(master, piece);
  const { range, state } = ranges.find((one) => one.range.group === piece.slot.group) as RangeState;
  return slicePiece(state[name] as Tensor, piece, range.offset);
}

/** A piece of a flat tensor that starts `base` elements into the partition; a whole parameter has its shape. */
export function slicePiece(flat: Tensor, { slot, offset, numel }: Piece, base = 0): Tensor {
  const place = { offset: offset - base, numel };
  return sliceFlat(flat, place, numel === slot.numel ? slot.shape : [numel]);
}

/** Every tensor of the state. */
export function stateTensors(ranges: readonly RangeState[]): Tensor[] {
  return ranges.flatMap(({ state, scalars, sums, starts }) => [
    ...Object.values(state),
    ...Object.values(scalars),
    ...(sums ? [sums] : []),
    starts,
  ]);
}

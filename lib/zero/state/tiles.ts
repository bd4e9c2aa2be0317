// The optimizer state of a partition by ranges, and the tiles of these ranges. Offloaded updates
// copy and compute one tile after another.
import { declaredState, portionOf, type StateTensor } from '../../optim/declared-state.js';
import type { Optimizer, ParameterPlace } from '../../optim/optimizer.js';
import type { Device } from '../../runtime/device.js';
import type { DType } from '../../runtime/dtype.js';
import { required } from '../../runtime/required.js';
import { Event } from '../../runtime/stream.js';
import { numel as sizeOf } from '../../runtime/view.js';
import { sliceFlat } from '../../tensor/flat.js';
import type { Tensor } from '../../tensor/index.js';
import { type Fragment, type GroupRange, parameterAlignment, type Range } from '../layout.js';
import { type Partition, sliceFragment } from '../partition.js';

/** A tile. Its tensors are slices of the range's tensors, except `starts`. */
export interface StateTile extends RangeState {
  /** Recorded when the gradient of the tile is in the memory that updates read. */
  readonly arrived: Event;
  /** Recorded when the new weights of the tile are complete. */
  readonly updated: Event;
}

/**
 * Returns the tile size for at most `subGroup` elements: a multiple of 64, at least 64.
 *
 * A stream queues about 500 pieces of host work. Tiles smaller than a unit add work, so they are
 * slower. Milliseconds per step (1558M on an H200): 417 with units, 435 with tiles of 2^24, 504
 * with 2^22.
 */
export function tileSize(subGroup: number): number {
  return Math.max(1, Math.floor(subGroup / parameterAlignment)) * parameterAlignment;
}

/**
 * Divides `numel` elements into ranges of about equal size: multiples of `alignment`, at most
 * `size`.
 */
export function cutEvenly(numel: number, size: number, alignment = parameterAlignment): Range[] {
  const count = Math.ceil(numel / size);
  const each = Math.ceil(numel / count / alignment) * alignment;
  const tiles: Range[] = [];
  for (let offset = 0; offset < numel; offset += each) {
    tiles.push({ offset, numel: Math.min(each, numel - offset) });
  }
  return tiles;
}

/**
 * Returns the tiles of a partition's ranges, in order. If an update reads whole parameters, the
 * range is one tile of any size. The caller releases the tiles with disposeTile(). `ranges` keep
 * their own references.
 */
export function createTiles(
  ranges: readonly RangeState[],
  optimizer: Optimizer,
  { device, size, allocate }: { device: Device; size: number; allocate: Allocate },
): StateTile[] {
  return ranges.flatMap((rangeState) => {
    const { range } = rangeState;
    const cuts = cutsOf(range, optimizer, size);
    const cut = (): RangeState[] =>
      cutState(rangeState, cuts, blockSizes(optimizer, range), allocate);
    const tiles = cuts.length > 1 ? cut() : [retainState(rangeState)];
    return tiles.map((tile) => ({ ...tile, ...createTileEvents(device) }));
  });
}

export function createTileEvents(device: Device): Pick<StateTile, 'arrived' | 'updated'> {
  return { arrived: new Event(device), updated: new Event(device) };
}

/**
 * Returns the ranges of the tiles of `range`, in order, with offsets from the partition's start.
 */
export function cutRange(range: GroupRange, optimizer: Optimizer, size: number): GroupRange[] {
  const cuts = cutsOf(range, optimizer, size);
  return cuts.length > 1 ? cuts.map((cut) => sliceOf(range, cut)) : [range];
}

/** Returns the cuts of a range, with offsets from its start. Empty if the range is one tile. */
function cutsOf(range: GroupRange, optimizer: Optimizer, size: number): Range[] {
  if (!isElementwise(optimizer, range)) return [];
  const blocks = Object.values(blockSizes(optimizer, range));
  return cutEvenly(range.numel, size, Math.max(parameterAlignment, ...blocks));
}

/** Returns a part of a range. It lists no parameters, because a cut may be inside a parameter. */
function sliceOf(range: GroupRange, { offset, numel }: Range): GroupRange {
  return { ...range, offset: range.offset + offset, numel, places: [] };
}

export function disposeTile(tile: StateTile): void {
  for (const tensor of stateTensors([tile])) tensor.release();
  for (const event of [tile.arrived, tile.updated]) event.dispose();
}

/** Returns whether all updates of a partition are elementwise, so that it may be cut anywhere. */
export function isByElement(optimizer: Optimizer, { groups }: Partition): boolean {
  return groups.every((range) => isElementwise(optimizer, range));
}

/**
 * Returns whether the optimizer needs no state, sums or updates of whole parameters in this range.
 */
function isElementwise(optimizer: Optimizer, { group, like }: GroupRange): boolean {
  const declared = Object.values(declaredState(optimizer, group, like));
  const sums = optimizer.sumsPerRound?.(group, like) ?? [];
  const isOfBlocks = declared.every(({ per }) => per !== null) && sums.length === 0;
  return isOfBlocks && !optimizer.needsWholeParameters?.(group);
}

/**
 * For an elementwise range, returns the number of parameters' elements per element of each state.
 */
function blockSizes(optimizer: Optimizer, { group, like }: GroupRange): Record<string, number> {
  const declared = Object.entries(declaredState(optimizer, group, like));
  return Object.fromEntries(declared.map(([name, { per }]) => [name, required(per)]));
}

function cutState(
  { range, state }: RangeState,
  cuts: readonly Range[],
  per: Readonly<Record<string, number>>,
  allocate: Allocate,
): RangeState[] {
  const ends = allocate([cuts.length], 'i64', 0);
  const sizes = cuts.map(({ numel }) => BigInt(numel));
  ends.buffer.write(0, BigInt64Array.from(sizes), ends.device.compute);
  const blockRange = ({ offset, numel }: Range, size: number): Range => ({
    offset: offset / size,
    numel: Math.ceil(numel / size),
  });
  const tiles = cuts.map((cut, index) => ({
    range: sliceOf(range, cut),
    state: mapValues(state, (flat, name) => sliceFlat(flat, blockRange(cut, required(per[name])))),
    sums: [],
    starts: sliceFlat(ends, { offset: index, numel: 1 }),
  }));
  ends.release();
  return tiles;
}

function retainState({ range, state, sums, starts }: RangeState): RangeState {
  const retain = (tensor: Tensor): Tensor => tensor.retain();
  return { range, state: mapValues(state, retain), sums: sums.map(retain), starts: retain(starts) };
}

function mapValues(
  values: Readonly<Record<string, Tensor>>,
  change: (value: Tensor, name: string) => Tensor,
): Record<string, Tensor> {
  return Object.fromEntries(
    Object.entries(values).map(([name, value]) => [name, change(value, name)]),
  );
}

/** Returns a tensor of `shape` with `value` in each element. The caller releases it. */
export type Allocate = (shape: readonly number[], dtype: DType, value: number) => Tensor;

export interface RangeState {
  readonly range: GroupRange;
  /** State tensors by name: see UpdateTensors.state. */
  readonly state: Readonly<Record<string, Tensor>>;
  /** Sums by round: see UpdateTensors.sums. */
  readonly sums: readonly Tensor[];
  /** [places + 1] i64: see UpdateTensors.starts. */
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

/** Allocates the tensors that updates of a range need in addition to state. */
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

/** A flat state tensor of a range: its size, dtype and initial value. */
interface StateSize extends Pick<StateTensor, 'dtype' | 'initial'> {
  readonly name: string;
  readonly numel: number;
}

/** Returns the sizes of all state tensors of `optimizer` for a range. */
export function stateSizes(range: GroupRange, optimizer: Optimizer): StateSize[] {
  const declared = declaredState(optimizer, range.group, range.like);
  return Object.entries(declared).map(([name, { per, dtype, initial }]) => {
    const numel = per === null ? sizeOfWhole(range, optimizer, name) : Math.ceil(range.numel / per);
    return { name, dtype, initial, numel };
  });
}

/**
 * Returns the number of elements of a per-parameter state, summed over the parameters of a range.
 */
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
 * Returns a fragment of the masters (name "master") or of the state `name`, in the parameter's
 * shape if it is whole. The caller releases it.
 */
export function namedFragment(
  { optimizer, master, ranges }: KeptState,
  fragment: Fragment,
  name: string,
): Tensor {
  if (name === 'master') return sliceFragment(master, fragment);
  const groups = ranges.map(({ range }) => range);
  const { range, place, shape } = locateInState({ optimizer, groups }, fragment, name);
  const { state } = required(ranges.find((state) => state.range === range));
  return sliceFlat(required(state[name]), place, shape);
}

/** Where the state of a fragment is in the flat state tensor of its range. */
interface StateLocation {
  readonly range: GroupRange;
  readonly place: Range;
  /** The declared shape if the state is whole, else flat. */
  readonly shape: readonly number[];
  readonly declared: StateTensor;
}

/** Returns the location of a fragment's state `name` in the ranges of its partition. */
export function locateInState(
  { optimizer, groups }: { optimizer: Optimizer; groups: readonly GroupRange[] },
  fragment: Fragment,
  name: string,
): StateLocation {
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

// Split masters: an f32 master as the bf16 weight and its missing bits, in the weights' place or
// joined to f32 for an update.

import { halves, LOWER_HALF, type SplitMaster } from '../../optim/split-master.js';
import type { Device } from '../../runtime/device.js';
import { dtypeSize } from '../../runtime/dtype.js';
import * as kernels from '../../runtime/kernels.generated.js';
import { required } from '../../runtime/required.js';
import type { Stream } from '../../runtime/stream.js';
import { copyAll, copyFlat, sliceFlat } from '../../tensor/flat.js';
import type { Tensor } from '../../tensor/index.js';
import type { Fragment, Range } from '../layout.js';
import type { Partition } from '../partition.js';
import { allocatePinned, type Bytes, LentState } from './memory.js';
import {
  canAccess,
  type MasterCosts,
  type Masters,
  type OpenTile,
  type Placement,
  type ShardPart,
  type Traffic,
} from './strategies.js';
import { placeInState, type RangeState, type StateTile } from './tiles.js';
import type { WeightSlots } from './weight-slots.js';

/**
 * The state has 2.125 instead of 4 bytes per parameter. They restore the f32 master from its bf16
 * weight. Updates must wait for the step decision, because speculation would change the weights.
 * Lent master weights are f32 copies. How an update gets the upper halves:
 *
 *   weights in reach of kernels   in place
 *   with `slots`                  to a slot of host memory and back, tile by tile
 *   else                          with the rest of the tile, through the placement
 */
export class SplitMasters implements Masters {
  static readonly costs: MasterCosts = {
    stored: LOWER_HALF,
    onDevice: 0,
    scratch: 0,
    areWeights: true,
    keepsWeights: false,
  };
  readonly areWeights = SplitMasters.costs.areWeights;
  readonly fragments: SplitFragments;
  readonly route = this;

  constructor(
    device: Device,
    rule: SplitMaster,
    private readonly placement: Placement,
    /** Slots for device weights that CPU threads update. Owned. */
    private readonly slots: WeightSlots | null = null,
  ) {
    this.fragments = new SplitFragments(device, rule, placement);
  }

  get bytes(): Bytes {
    return { device: 0, host: this.slots?.bytes ?? 0, disk: 0 };
  }

  memory({ weights }: Partition): Tensor {
    return weights.retain();
  }

  adopt({ tiles }: ShardPart): void {
    for (const { range } of tiles) this.slots?.makeRoom(range.numel);
  }

  storedTile(part: ShardPart, tile: StateTile): OpenTile {
    if (this.isInPlace(part)) return withLowerHalves(tile);
    const { range, state } = tile;
    const { weights } = part.partition;
    const master = this.slots?.fetch(weights, tile, part.uploaded) ?? sliceFlat(weights, range);
    return { master, state };
  }

  openTile(part: ShardPart, { range }: StateTile, kept: OpenTile): OpenTile {
    if (!this.isInPlace(part)) return kept;
    const { master: low, state } = kept;
    const master = sliceFlat(part.partition.weights, range);
    return { master, state: { ...state, [halves.low]: low } };
  }

  closeTile(part: ShardPart, { master, state }: OpenTile): OpenTile {
    if (!this.isInPlace(part)) return { master, state };
    master.release();
    return { master: required(state[halves.low]), state };
  }

  upload(part: ShardPart, tile: StateTile): void {
    if (this.slots) this.slots.send(part.partition.weights, tile);
    else if (this.isInPlace(part)) this.placement.traffic.holdUploads?.(tile.updated);
  }

  finish(part: ShardPart): Stream {
    const { traffic, storage } = this.placement;
    if (this.slots || this.isInPlace(part)) return traffic.finish(part);
    part.uploaded.record(storage.order);
    return storage.order;
  }

  /** Does nothing: the weights are the upper halves of the masters. */
  refresh(): void {
    this.placement.synchronize();
  }

  dispose(): void {
    this.slots?.dispose();
  }

  private isInPlace({ partition }: ShardPart): boolean {
    return canAccess(this.placement, partition.weights);
  }
}

function withLowerHalves({ state }: StateTile): OpenTile {
  const { [halves.low]: low, ...rest } = state;
  return { master: required(low).retain(), state: rest };
}

/** An open tile with references: its upper halves on the device, and the placement's tensors. */
interface JoinedTile {
  high: Tensor;
  /** The lower halves as `master`, and the ties in the state. */
  lowTile: OpenTile;
}

/**
 * 10.125 instead of 12 bytes per parameter cross PCIe each way. Speculative weights are one step
 * ahead of the masters, so the device stores separate bf16 upper halves. Lower halves stream with
 * the moments, and each tile is joined to f32 masters. Offloaded weights stay on the device,
 * because the next forward would copy them back. See `costs` for the memory.
 */
export class JoinedMasters implements Masters {
  static readonly costs: MasterCosts = {
    stored: LOWER_HALF,
    onDevice: dtypeSize('bf16'),
    scratch: dtypeSize('f32'),
    areWeights: false,
    keepsWeights: true,
  };
  readonly areWeights = JoinedMasters.costs.areWeights;
  readonly fragments: SplitFragments;
  readonly route: Traffic;
  /** f32 masters of the open tile, in the order of updates. */
  private scratch: Tensor;
  private joined: JoinedTile | null = null;

  /** `rule`: for partitions with bf16 weights. */
  constructor(
    private readonly device: Device,
    rule: SplitMaster,
    private readonly placement: Placement,
  ) {
    this.fragments = new SplitFragments(device, rule, placement);
    this.route = placement.traffic;
    this.scratch = placement.allocate(0, 'f32');
  }

  get bytes(): Bytes {
    return { device: this.scratch.bytes, host: 0, disk: 0 };
  }

  memory({ numel }: Partition): Tensor {
    return this.placement.allocate(numel, 'bf16');
  }

  adopt(part: ShardPart): void {
    this.keepOnDevice(part.partition);
    const largest = Math.max(0, ...part.tiles.map(({ range }) => range.numel));
    if (largest <= this.scratch.numel) return;
    this.scratch.release();
    this.scratch = this.placement.allocate(largest, 'f32');
  }

  private keepOnDevice({ weights, storage }: Partition): void {
    if (canAccess(this.placement, weights)) return;
    const deviceCopy = this.placement.allocate(weights.numel, weights.dtype);
    copyAll(deviceCopy, weights, this.device.compute);
    this.device.compute.synchronize();
    storage.exchange?.(deviceCopy).release();
  }

  storedTile(_: ShardPart, tile: StateTile): OpenTile {
    return withLowerHalves(tile);
  }

  openTile(part: ShardPart, { range }: StateTile, lowTile: OpenTile): OpenTile {
    const high = sliceFlat(required(part.master), range);
    const master = sliceFlat(this.scratch, { offset: 0, numel: range.numel });
    this.joined = { high, lowTile };
    const { [halves.ties]: ties, ...state } = lowTile.state;
    const { order } = this.placement.traffic;
    kernels.joinMaster({ high, low: lowTile.master, ties: required(ties), out: master }, order);
    return { master, state };
  }

  closeTile(_: ShardPart, { master }: OpenTile, changed: boolean): OpenTile {
    const { high, lowTile } = required(this.joined);
    this.joined = null;
    const ties = required(lowTile.state[halves.ties]);
    const { order } = this.placement.traffic;
    if (changed) kernels.splitMaster({ in: master, high, low: lowTile.master, ties }, order);
    for (const tensor of [high, master]) tensor.release();
    return lowTile;
  }

  /** Copies the upper halves, which are the rounded masters, to the weights. */
  refresh({ master, partition }: ShardPart): void {
    this.placement.synchronize();
    copyAll(partition.weights, required(master), this.device.compute);
    this.device.compute.synchronize();
  }

  dispose(): void {
    this.scratch.release();
  }
}

const TIES_PER_BYTE = 8;

/** Elements per write; their f32 copy needs 8 MiB of host memory. */
const ELEMENTS_PER_WRITE = 2 ** 21;

/** Halves of a part of a range in host memory, with references. */
interface Halves {
  high: Tensor;
  low: Tensor;
  ties: Tensor;
}

/** A fragment in the smallest part of its range with byte-aligned ties. */
interface FragmentLocation {
  readonly range: RangeState;
  /** The part, from the range's start. */
  readonly alignedRange: Range;
  /** The fragment, from the part's start. */
  readonly fragmentRange: Range;
}

/** Joins and splits on CPU threads. Lent fragments are f32 copies. */
class SplitFragments {
  constructor(
    private readonly device: Device,
    private readonly optimizer: SplitMaster,
    private readonly placement: Placement,
  ) {}

  lend(part: ShardPart, fragment: Fragment): LentState {
    const { order } = this.placement.traffic;
    // Streamed halves are in two memories and change on different streams.
    if (!this.placement.windows) order.wait(part.uploaded);
    else this.placement.synchronize();
    const high = required(part.master);
    const { range, alignedRange, fragmentRange } = this.placeOf(part, fragment);
    const joined = allocatePinned(this.device, [alignedRange.numel], 'f32');
    const room = allocateUpper(high, alignedRange.numel);
    withHalves({ high, range, alignedRange, order, room }, (split) =>
      kernels.joinMasterOnHost({ ...split, out: joined }, order),
    );
    room?.release();
    const isWhole = fragment.numel === fragment.entry.numel;
    const lent = sliceFlat(joined, fragmentRange, isWhole ? fragment.entry.shape : undefined);
    joined.release();
    return new LentState(lent, order, () => {
      this.device.compute.synchronize();
      this.writeOn(order, part, fragment, lent);
    });
  }

  /** See StateStorage.writeMaster. Blocks until complete. */
  write(part: ShardPart, fragment: Fragment, values: Tensor): void {
    this.writeOn(this.device.compute, part, fragment, values);
    this.placement.storage.followCompute();
  }

  /** Sets the master weights in the order of `stream`. Blocks until complete. */
  private writeOn(stream: Stream, part: ShardPart, fragment: Fragment, values: Tensor): void {
    const high = required(part.master);
    const { range, alignedRange, fragmentRange } = this.placeOf(part, fragment);
    const max = Math.min(alignedRange.numel, ELEMENTS_PER_WRITE);
    const scratch = allocatePinned(this.device, [max], 'f32');
    const room = allocateUpper(high, max);
    for (let first = 0; first < alignedRange.numel; first += max) {
      const numel = Math.min(max, alignedRange.numel - first);
      const cut = { offset: alignedRange.offset + first, numel };
      const from = Math.max(first, fragmentRange.offset);
      const end = Math.min(first + numel, fragmentRange.offset + fragmentRange.numel);
      const joined = sliceFlat(scratch, { offset: 0, numel });
      withHalves({ high, range, alignedRange: cut, order: stream, room }, (split) => {
        // Elements beside the fragment may share a byte of ties with it: they keep their values.
        kernels.joinMasterOnHost({ ...split, out: joined }, stream);
        const at = { offset: from - first, numel: end - from };
        copyFlat(
          joined,
          at,
          values,
          { offset: from - fragmentRange.offset, numel: end - from },
          stream,
        );
        kernels.splitMasterOnHost({ ...split, in: joined }, stream);
        if (room) copyFlat(high, inPartition(range, cut), split.high, wholeRange(cut), stream);
      });
      joined.release();
    }
    stream.synchronize();
    for (const item of [scratch, room]) item?.release();
  }

  private placeOf({ ranges }: ShardPart, fragment: Fragment): FragmentLocation {
    const { optimizer } = this;
    const groups = ranges.map(({ range }) => range);
    const location = placeInState({ optimizer, groups }, fragment, halves.low);
    const { offset, numel } = location.place;
    const first = Math.floor(offset / TIES_PER_BYTE) * TIES_PER_BYTE;
    const end = Math.ceil((offset + numel) / TIES_PER_BYTE) * TIES_PER_BYTE;
    return {
      range: required(ranges.find(({ range }) => range === location.range)),
      alignedRange: { offset: first, numel: Math.min(end, location.range.numel) - first },
      fragmentRange: { offset: offset - first, numel },
    };
  }
}

/** Returns host memory for upper halves of `numel` masters, or null if they are already there. */
function allocateUpper(high: Tensor, numel: number): Tensor | null {
  return high.buffer.pinned ? null : allocatePinned(high.device, [numel], 'bf16');
}

const wholeRange = ({ numel }: Range): Range => ({ offset: 0, numel });

/** Returns a part of a range by its offset from the partition's start. */
const inPartition = ({ range }: RangeState, { offset, numel }: Range): Range => ({
  offset: range.offset + offset,
  numel,
});

/** A part of a range. `room` receives its upper halves if they are not in host memory. */
interface HalvesRequest extends Omit<FragmentLocation, 'fragmentRange'> {
  high: Tensor;
  order: Stream;
  room: Tensor | null;
}

/** Calls `body`, which enqueues work on the halves in `order`. `room` has copies. */
function withHalves(
  { high, range, alignedRange, order, room }: HalvesRequest,
  body: (split: Halves) => void,
): void {
  const { state } = range;
  const ownRange = inPartition(range, alignedRange);
  const bytes = {
    offset: alignedRange.offset / TIES_PER_BYTE,
    numel: Math.ceil(alignedRange.numel / TIES_PER_BYTE),
  };
  if (room) copyFlat(room, wholeRange(alignedRange), high, ownRange, order);
  const split: Halves = {
    high: room ? sliceFlat(room, wholeRange(alignedRange)) : sliceFlat(high, ownRange),
    low: sliceFlat(required(state[halves.low]), alignedRange),
    ties: sliceFlat(required(state[halves.ties]), bytes),
  };
  body(split);
  for (const tensor of Object.values(split)) tensor.release();
}

// Split masters store an f32 master weight as the bf16 weight and its missing bits. SplitMasters
// uses the weights themselves as upper halves. JoinedMasters restores f32 masters for each update.

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
import { locateInState, type RangeState, type StateTile } from './tiles.js';
import type { WeightSlots } from './weight-slots.js';

/**
 * The state has 2.125 instead of 4 bytes per parameter. With the bf16 weight, they restore the f32
 * master exactly. Updates must wait for the step decision, because speculation would overwrite the
 * weights. Lent master weights are f32 copies. Updates get the upper halves in one of three ways:
 *
 *   kernels can access the weights   in place
 *   with `slots`                     copied to a slot of host memory and back, tile by tile
 *   else                             copied with the rest of the tile by the placement
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
    /** Slots for weights on the device that CPU threads update. Owned. */
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
    for (const { range } of tiles) this.slots?.reserve(range.numel);
  }

  storedTile(part: ShardPart, tile: StateTile): OpenTile {
    if (this.isInPlace(part)) return withLowerHalves(tile);
    const { range, state } = tile;
    const { weights } = part.partition;
    const master = this.slots?.fetch(weights, tile, part.uploaded) ?? sliceFlat(weights, range);
    return { master, state };
  }

  openTile(part: ShardPart, { range }: StateTile, stored: OpenTile): OpenTile {
    if (!this.isInPlace(part)) return stored;
    const { master: low, state } = stored;
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

  /** Recomputes nothing, because the weights are the upper halves of the masters. */
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

/**
 * An open tile. It holds references to the upper halves on the device and to the placement's
 * tensors.
 */
interface JoinedTile {
  high: Tensor;
  /** `master` has the lower halves; the state includes the bits for ties. */
  lowTile: OpenTile;
}

/**
 * Split masters for updates on the device with state in host memory. Each way over PCIe carries
 * 10.125 instead of 12 bytes per parameter. Speculative weights are one step ahead of the masters,
 * so the device stores separate bf16 upper halves. Lower halves stream with the moments, and a
 * kernel joins both halves of a tile to f32 masters.
 *
 * Offloaded weights stay on the device, because the next forward would copy them back. `costs`
 * states the memory.
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
  /** f32 masters of the open tile, used in the order of updates. */
  private scratch: Tensor;
  private joined: JoinedTile | null = null;

  /** `rule`: the optimizer. The weights of its partitions are bf16. */
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

  /** Copies the upper halves to the weights: they are the rounded masters. */
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

/** Elements per write. Their f32 copy needs 8 MiB of host memory. */
const ELEMENTS_PER_WRITE = 2 ** 21;

/** Both halves of some elements of a range, in host memory. The owner releases them. */
interface Halves {
  high: Tensor;
  low: Tensor;
  ties: Tensor;
}

/**
 * The location of a fragment. Ties have one bit per element, so it is extended to whole bytes of
 * ties.
 */
interface FragmentLocation {
  readonly range: RangeState;
  /** The extended elements, from the start of the range. */
  readonly alignedRange: Range;
  /** The fragment, from the start of `alignedRange`. */
  readonly fragmentRange: Range;
}

/**
 * Joins and splits fragments on CPU threads, to lend and to load masters. Lent fragments are f32
 * copies.
 */
class SplitFragments {
  constructor(
    private readonly device: Device,
    private readonly optimizer: SplitMaster,
    private readonly placement: Placement,
  ) {}

  lend(part: ShardPart, fragment: Fragment): LentState {
    const { order } = this.placement.traffic;
    // The halves of a streamed placement are in two memories, and change on two streams.
    if (!this.placement.windows) order.wait(part.uploaded);
    else this.placement.synchronize();
    const high = required(part.master);
    const { range, alignedRange, fragmentRange } = this.placeOf(part, fragment);
    const joined = allocatePinned(this.device, [alignedRange.numel], 'f32');
    const highCopy = allocateUpper(high, alignedRange.numel);
    withHalves({ high, range, alignedRange, order, highCopy }, (split) =>
      kernels.joinMasterOnHost({ ...split, out: joined }, order),
    );
    highCopy?.release();
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
    const highCopy = allocateUpper(high, max);
    for (let first = 0; first < alignedRange.numel; first += max) {
      const numel = Math.min(max, alignedRange.numel - first);
      const cut = { offset: alignedRange.offset + first, numel };
      const from = Math.max(first, fragmentRange.offset);
      const end = Math.min(first + numel, fragmentRange.offset + fragmentRange.numel);
      const joined = sliceFlat(scratch, { offset: 0, numel });
      withHalves({ high, range, alignedRange: cut, order: stream, highCopy }, (split) => {
        // Neighbors of the fragment may share a byte of ties with it. They keep their values.
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
        if (highCopy) copyFlat(high, inPartition(range, cut), split.high, wholeRange(cut), stream);
      });
      joined.release();
    }
    stream.synchronize();
    for (const item of [scratch, highCopy]) item?.release();
  }

  private placeOf({ ranges }: ShardPart, fragment: Fragment): FragmentLocation {
    const { optimizer } = this;
    const groups = ranges.map(({ range }) => range);
    const location = locateInState({ optimizer, groups }, fragment, halves.low);
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

/**
 * Returns host memory for the upper halves of `numel` masters, or null if they are in host memory
 * already.
 */
function allocateUpper(high: Tensor, numel: number): Tensor | null {
  return high.buffer.pinned ? null : allocatePinned(high.device, [numel], 'bf16');
}

const wholeRange = ({ numel }: Range): Range => ({ offset: 0, numel });

/** Converts an offset from the start of the range to one from the start of the partition. */
const inPartition = ({ range }: RangeState, { offset, numel }: Range): Range => ({
  offset: range.offset + offset,
  numel,
});

/**
 * Some elements of a range. If the upper halves are not in host memory, `highCopy` receives them.
 */
interface HalvesRequest extends Omit<FragmentLocation, 'fragmentRange'> {
  high: Tensor;
  order: Stream;
  highCopy: Tensor | null;
}

/** Calls `body`, which enqueues work on the halves in `order`. Releases the halves afterwards. */
function withHalves(
  { high, range, alignedRange, order, highCopy }: HalvesRequest,
  body: (split: Halves) => void,
): void {
  const { state } = range;
  const ownRange = inPartition(range, alignedRange);
  const bytes = {
    offset: alignedRange.offset / TIES_PER_BYTE,
    numel: Math.ceil(alignedRange.numel / TIES_PER_BYTE),
  };
  if (highCopy) copyFlat(highCopy, wholeRange(alignedRange), high, ownRange, order);
  const split: Halves = {
    high: highCopy ? sliceFlat(highCopy, wholeRange(alignedRange)) : sliceFlat(high, ownRange),
    low: sliceFlat(required(state[halves.low]), alignedRange),
    ties: sliceFlat(required(state[halves.ties]), bytes),
  };
  body(split);
  for (const tensor of Object.values(split)) tensor.release();
}

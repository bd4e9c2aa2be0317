// Fragments of split master weights: joined to f32 for reads, split again for writes.

import { halves, type SplitMaster } from '../../optim/split-master.js';
import type { Device } from '../../runtime/device.js';
import * as kernels from '../../runtime/kernels.generated.js';
import { required } from '../../runtime/required.js';
import type { Stream } from '../../runtime/stream.js';
import { copyFlat, sliceFlat } from '../../tensor/flat.js';
import type { Tensor } from '../../tensor/index.js';
import type { Fragment, Range } from '../layout.js';
import { LentState } from './lent-state.js';
import { allocatePinned } from './pinned.js';
import { placeInState, type RangeState } from './range-state.js';
import type { Placement, ShardPart } from './strategies.js';

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
export class SplitFragments {
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

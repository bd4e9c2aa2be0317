// Pieces of master weights in halves: f32 where they are lent, split again where they are written.
import { halves, type SplitMaster } from '../../optim/split-master.js';
import type { Device } from '../../runtime/device.js';
import * as kernels from '../../runtime/kernels.generated.js';
import type { Stream } from '../../runtime/stream.js';
import type { Tensor } from '../../tensor/index.js';
import { copyFlat, sliceFlat } from '../flat.js';
import type { Piece, Range } from '../layout.js';
import type { Partition } from '../partition.js';
import { LentState } from './lent-state.js';
import { pinned } from './pinned.js';
import { placeInState, type RangeState } from './range-state.js';

/** Elements of a byte of ties. */
const PER_BYTE = 8;

/** Elements that are written at once: their f32 copy takes 8 MiB of host memory. */
const WRITTEN_AT_ONCE = 2 ** 21;

/** What is kept of a partition: upper halves wherever they are, the others in host memory. */
export interface SplitPart {
  /** [numel] bf16, the upper halves. */
  readonly master: Tensor;
  /** The state, lower halves and ties in it. */
  readonly ranges: readonly RangeState[];
}

/** Halves of a part of a range, held, in host memory. */
interface Halves {
  high: Tensor;
  low: Tensor;
  ties: Tensor;
}

/**
 * Where a piece lies in the smallest part of its range that begins at a byte of ties and ends after
 * one, or with the range.
 */
interface Place {
  readonly range: RangeState;
  /** That part, from the range's start. */
  readonly around: Range;
  /** The piece, from the part's start. */
  readonly within: Range;
}

/** Joins and splits on host threads. What is lent is a copy in f32. */
export class SplitPieces {
  constructor(
    private readonly device: Device,
    private readonly optimizer: SplitMaster,
    private readonly partOf: (partition: Partition) => SplitPart,
  ) {}

  /** `order`: in which halves change, on the host and where the upper ones are. */
  lend(partition: Partition, piece: Piece, order: Stream): LentState {
    const { master: high } = this.partOf(partition);
    const { range, around, within } = this.placeOf(partition, piece);
    const joined = pinned(this.device, [around.numel], 'f32');
    const room = roomFor(high, around.numel);
    withHalves({ high, range, around, order, room }, (parts) =>
      kernels.joinMasterOnHost({ ...parts, out: joined }, order),
    );
    room?.release();
    const isWhole = piece.numel === piece.slot.numel;
    const lent = sliceFlat(joined, within, isWhole ? piece.slot.shape : undefined);
    joined.release();
    return new LentState(lent, order, () => {
      this.device.compute.synchronize();
      this.write(partition, piece, lent, order);
    });
  }

  /**
   * Master weights of a piece become `values`, f32, in the order of `stream`; blocks until they
   * are.
   */
  write(partition: Partition, piece: Piece, values: Tensor, stream: Stream): void {
    const { master: high } = this.partOf(partition);
    const { range, around, within } = this.placeOf(partition, piece);
    const most = Math.min(around.numel, WRITTEN_AT_ONCE);
    const scratch = pinned(this.device, [most], 'f32');
    const room = roomFor(high, most);
    for (let first = 0; first < around.numel; first += most) {
      const numel = Math.min(most, around.numel - first);
      const cut = { offset: around.offset + first, numel };
      const from = Math.max(first, within.offset);
      const end = Math.min(first + numel, within.offset + within.numel);
      const joined = sliceFlat(scratch, { offset: 0, numel });
      withHalves({ high, range, around: cut, order: stream, room }, (parts) => {
        // What shares a byte with the piece stays as it is now, not as it was when the piece was
        // lent.
        kernels.joinMasterOnHost({ ...parts, out: joined }, stream);
        const at = { offset: from - first, numel: end - from };
        copyFlat(joined, at, values, { offset: from - within.offset, numel: end - from }, stream);
        kernels.splitMasterOnHost({ ...parts, in: joined }, stream);
        if (room) copyFlat(high, inPartition(range, cut), parts.high, all(cut), stream);
      });
      joined.release();
    }
    stream.synchronize();
    for (const one of [scratch, room]) one?.release();
  }

  private placeOf(partition: Partition, piece: Piece): Place {
    const { optimizer } = this;
    const { ranges } = this.partOf(partition);
    const groups = ranges.map(({ range }) => range);
    const found = placeInState({ optimizer, groups }, piece, halves.low);
    const { offset, numel } = found.place;
    const first = Math.floor(offset / PER_BYTE) * PER_BYTE;
    const end = Math.ceil((offset + numel) / PER_BYTE) * PER_BYTE;
    return {
      range: ranges.find(({ range }) => range === found.range) as RangeState,
      around: { offset: first, numel: Math.min(end, found.range.numel) - first },
      within: { offset: offset - first, numel },
    };
  }
}

/** Host memory for upper halves of `numel` masters; null where that is where they are. */
function roomFor(high: Tensor, numel: number): Tensor | null {
  return high.buffer.pinned ? null : pinned(high.device, [numel], 'bf16');
}

const all = ({ numel }: Range): Range => ({ offset: 0, numel });

/** A part of a range, from the partition's start. */
const inPartition = ({ range }: RangeState, { offset, numel }: Range): Range => ({
  offset: range.offset + offset,
  numel,
});

/** A part of a range; `room` is for its upper halves where these are not in host memory. */
interface Opening extends Omit<Place, 'within'> {
  high: Tensor;
  order: Stream;
  room: Tensor | null;
}

/**
 * Calls `body`, which enqueues in `order` what reads halves, or changes them; upper ones in `room`
 * are a copy.
 */
function withHalves(
  { high, range, around, order, room }: Opening,
  body: (parts: Halves) => void,
): void {
  const { state } = range;
  const own = inPartition(range, around);
  const bytes = { offset: around.offset / PER_BYTE, numel: Math.ceil(around.numel / PER_BYTE) };
  if (room) copyFlat(room, all(around), high, own, order);
  const parts: Halves = {
    high: room ? sliceFlat(room, all(around)) : sliceFlat(high, own),
    low: sliceFlat(state[halves.low] as Tensor, around),
    ties: sliceFlat(state[halves.ties] as Tensor, bytes),
  };
  body(parts);
  for (const tensor of Object.values(parts)) tensor.release();
}

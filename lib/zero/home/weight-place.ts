// Where the weights that a rank keeps of a unit are between uses: in memory, its own or pinned, or
// on a disk.
import * as kernels from '../../runtime/kernels.generated.js';
import type { Stream } from '../../runtime/stream.js';
import type { Tensor } from '../../tensor/index.js';
import { copyAll, slicePiece } from '../flat.js';
import type { Piece } from '../layout.js';
import { type Bytes, LentState } from './lent-state.js';

/** Nothing here waits for the host: what comes and goes is ordered by streams. */
export interface WeightPlace {
  /** [numel] in the weights' dtype, on the device or pinned; null where they are on a disk. */
  readonly memory: Tensor | null;
  readonly bytes: Bytes;
  /** `to`, [numel] on the device in the weights' dtype, receives them in the order of `stream`. */
  load(to: Tensor, stream: Stream): void;
  /**
   * They become `from` as `stream` leaves it: [numel], on the device in their dtype, or pinned in
   * any that rounds to it; `memory` itself is there already. Returns the stream in whose order they
   * change, which has read `from` then.
   */
  store(from: Tensor, stream: Stream): Stream;
  /**
   * Of a place in memory: `memory`, of as many elements and in the same kind of memory, is it from
   * now on and belongs to it. Returns what was, which is the caller's.
   */
  exchange?(memory: Tensor): Tensor;
  /** A piece of them, held once more or a copy; in its shape where it is a whole parameter. */
  lend(piece: Piece): LentState;
  dispose(): void;
}

/** All the time in memory, which belongs to it. */
export class InMemory implements WeightPlace {
  constructor(private own: Tensor) {}

  get memory(): Tensor {
    return this.own;
  }

  exchange(memory: Tensor): Tensor {
    const { own } = this;
    this.own = memory;
    return own;
  }

  get bytes(): Bytes {
    const { bytes, buffer } = this.memory;
    return { device: buffer.pinned ? 0 : bytes, host: buffer.pinned ? bytes : 0, disk: 0 };
  }

  load(to: Tensor, stream: Stream): void {
    copyAll(to, this.memory, stream);
  }

  store(from: Tensor, stream: Stream): Stream {
    if (from.buffer !== this.memory.buffer) write(this.memory, from, stream);
    return stream;
  }

  lend(piece: Piece): LentState {
    return new LentState(slicePiece(this.memory, piece), this.memory.device.compute);
  }

  dispose(): void {
    this.memory.release();
  }
}

/** Enqueues that `to`, all of it, becomes `from`, rounded where both are in host memory. */
export function write(to: Tensor, from: Tensor, stream: Stream): void {
  if (from.buffer.pinned && to.buffer.pinned) kernels.copyOnHost({ in: from, out: to }, stream);
  else copyAll(to, from, stream);
}

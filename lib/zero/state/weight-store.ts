// WeightStore: storage of a rank's weights of a unit between uses, in device or pinned memory or on
// a disk.
import * as kernels from '../../runtime/kernels.generated.js';
import type { Stream } from '../../runtime/stream.js';
import type { Tensor } from '../../tensor/index.js';
import { copyAll, sliceFragment } from '../flat.js';
import type { Fragment } from '../layout.js';
import { type Bytes, LentState } from './lent-state.js';

/** Methods do not block the host; streams order the work. */
export interface WeightStore {
  /** [numel] in the weights' dtype, on the device or pinned; null on a disk. */
  readonly memory: Tensor | null;
  readonly bytes: Bytes;
  /**
   * Copies the weights to `to` ([numel] on the device, in their dtype) in the order of `stream`.
   */
  load(to: Tensor, stream: Stream): void;
  /**
   * Sets the weights to `from` after the work of `stream`. `from` is [numel]: on the device in
   * their dtype, or pinned in any dtype that rounds to it; `memory` itself needs no copy. Returns
   * the stream that orders the change and the read of `from`.
   */
  store(from: Tensor, stream: Stream): Stream;
  /**
   * For storage in memory: replaces it by `memory`, with as many elements in the same kind of
   * memory, and takes ownership. Returns the previous memory; the caller owns it.
   */
  exchange?(memory: Tensor): Tensor;
  /** Lends a fragment, as a reference or a copy, in the parameter's shape if it is whole. */
  lend(fragment: Fragment): LentState;
  dispose(): void;
}

/** Storage in memory, which it owns. */
export class InMemory implements WeightStore {
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

  lend(fragment: Fragment): LentState {
    return new LentState(sliceFragment(this.memory, fragment), this.memory.device.compute);
  }

  dispose(): void {
    this.memory.release();
  }
}

/** Enqueues a copy of `from` to `to`, rounded if both are in host memory. */
export function write(to: Tensor, from: Tensor, stream: Stream): void {
  if (from.buffer.pinned && to.buffer.pinned) kernels.copyOnHost({ in: from, out: to }, stream);
  else copyAll(to, from, stream);
}

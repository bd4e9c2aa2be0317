// HostCopy: copies the tensors of a checkpoint to pinned host memory, so that training can continue
// while a thread writes them.

import {
  isRemote,
  type LocalShard,
  partsOf,
  type Remote,
  type Shard,
} from '../../checkpoint/index.js';
import { Buffer } from '../../runtime/buffer.js';
import type { Device } from '../../runtime/device.js';
import { dtypeSize } from '../../runtime/dtype.js';
import { required } from '../../runtime/required.js';
import { Event } from '../../runtime/stream.js';
import { held, Tensor } from '../../tensor/index.js';

/** Alignment of each tensor in bytes. It suits every dtype. */
const ALIGNMENT = 64;

const alignUp = (bytes: number): number => Math.ceil(bytes / ALIGNMENT) * ALIGNMENT;

/** Owns one block of pinned memory, which grows as needed. */
export class HostCopy {
  private memory: Buffer | null = null;
  private readonly copied: Event;

  constructor(private readonly device: Device) {
    this.copied = new Event(device);
  }

  /**
   * Enqueues copies of the shards on the compute stream, and returns the copies. They are complete
   * after wait(). The caller releases them. Later work on the compute stream may overwrite device
   * memory. Shards in host memory must not change before wait(). Each call reuses the memory of the
   * last one if it is large enough.
   */
  take(shards: readonly Shard[]): LocalShard[] {
    const offsets: number[] = [];
    let bytes = 0;
    for (const { tensor } of shards) {
      offsets.push(bytes);
      bytes += alignUp(tensor.bytes);
    }
    const memory = this.reserve(bytes);
    const copies = shards.map((shard, i) => {
      const { tensor } = shard;
      const { dtype } = tensor;
      const to = required(offsets[i]);
      const view = (): Tensor => {
        const shape = isRemote(tensor) ? [tensor.numel] : tensor.shape;
        return new Tensor(memory.retain(), dtype, shape, undefined, to / dtypeSize(dtype));
      };
      this.fill(memory, to, tensor);
      return { ...shard, tensor: held(view) };
    });
    this.copied.record(this.device.compute);
    return copies;
  }

  /** Copies a tensor to byte offset `to`. Copies of remote values are complete on return. */
  private fill(memory: Buffer, to: number, values: Tensor | Remote): void {
    const { compute } = this.device;
    const size = dtypeSize(values.dtype);
    const copy = ({ buffer, offset, bytes }: Tensor, at: number): void => {
      if (bytes > 0) memory.copyFrom(buffer, { to: at, from: offset * size, bytes }, compute);
    };
    if (!isRemote(values)) {
      copy(values, to);
      return;
    }
    for (const [first, numel] of partsOf(values)) {
      const part = values.borrow(first, numel);
      part.wait();
      copy(part.tensor, to + first * size);
      compute.synchronize();
      part.tensor.release();
    }
  }

  wait(): void {
    this.copied.synchronize();
  }

  dispose(): void {
    this.memory?.release();
    this.memory = null;
    this.copied.dispose();
  }

  private reserve(bytes: number): Buffer {
    if (this.memory && this.memory.bytes >= bytes) return this.memory;
    this.memory?.release();
    this.memory = Buffer.allocatePinned(this.device, Math.max(bytes, ALIGNMENT));
    return this.memory;
  }
}

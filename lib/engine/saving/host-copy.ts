// A copy of a checkpoint's tensors in pinned host memory, so that training can go on while they are
// written.
import type { Shard } from '../../checkpoint/index.js';
import { Buffer } from '../../runtime/buffer.js';
import type { Device } from '../../runtime/device.js';
import { dtypeSize } from '../../runtime/dtype.js';
import { Event } from '../../runtime/stream.js';
import { held, Tensor } from '../../tensor/index.js';

/** Elements of every dtype fit. */
const ALIGNMENT = 64;

const alignUp = (bytes: number): number => Math.ceil(bytes / ALIGNMENT) * ALIGNMENT;

/** Owns one block of pinned memory, as large as what it copies. */
export class HostCopy {
  private memory: Buffer | null = null;
  private readonly copied: Event;

  constructor(private readonly device: Device) {
    this.copied = new Event(device);
  }

  /**
   * Enqueues copies of the shards' values on the compute stream; the shards returned are the
   * copies, to be released by the caller, complete after wait(). Device memory may change in the
   * order of that stream at once; host memory only after wait(). The memory of the last call is
   * used again where it is large enough.
   */
  take(shards: readonly Shard[]): Shard[] {
    const offsets: number[] = [];
    let bytes = 0;
    for (const { tensor } of shards) {
      offsets.push(bytes);
      bytes += alignUp(tensor.bytes);
    }
    const memory = this.reserve(bytes);
    const copies = shards.map((shard, i) => {
      const { tensor } = shard;
      const size = dtypeSize(tensor.dtype);
      const to = offsets[i] as number;
      const range = { to, from: tensor.offset * size, bytes: tensor.bytes };
      if (tensor.bytes > 0) memory.copyFrom(tensor.buffer, range, this.device.compute);
      const view = () =>
        new Tensor(memory.retain(), tensor.dtype, tensor.shape, undefined, to / size);
      return { ...shard, tensor: held(view) };
    });
    this.copied.record(this.device.compute);
    return copies;
  }

  /** Blocks until the copies are complete. */
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

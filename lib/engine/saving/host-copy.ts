// A copy of a checkpoint's tensors in pinned host memory, so that training can go on while they are
// written.
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
      const to = offsets[i] as number;
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

  /** Copies a tensor to byte `to`; remote values have come when it returns. */
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

// DepartingTensors: bounds the device memory of gradients and weights that are being copied to the
// host.
import type { Device } from '../../runtime/device.js';
import { Event, type Stream } from '../../runtime/stream.js';
import type { Tensor } from '../../tensor/index.js';

/**
 * One tensor is copied while backward completes the next. With one more, compute waits only if
 * copies are slower.
 */
const underWayAtMost = 2;

/**
 * Owns tensors with enqueued copies on one stream. The memory is freed in the order of compute,
 * after the copy, so the next tensor can reuse it at once. If it were freed in the order of the
 * copies, compute could not use it before the copy has run, and the gradients of the whole model
 * would be allocated.
 */
export class DepartingTensors {
  private readonly underWay: { tensor: Tensor; left: Event }[] = [];
  private readonly spare: Event[] = [];

  constructor(
    private readonly device: Device,
    private readonly copies: Stream,
  ) {}

  /** Takes ownership of `tensor`. All its readers are enqueued on the stream or on compute. */
  add(tensor: Tensor): void {
    const left = this.spare.pop() ?? new Event(this.device);
    this.underWay.push({ tensor, left: left.record(this.copies) });
    if (this.underWay.length > underWayAtMost) this.returnOldest();
  }

  /**
   * Frees all tensors in the order of the copies after the last tensor of a step, so compute does
   * not wait.
   */
  flush(): void {
    for (const { tensor, left } of this.underWay.splice(0)) {
      tensor.buffer.releaseOn(this.copies);
      tensor.release();
      this.spare.push(left);
    }
  }

  dispose(): void {
    this.flush();
    for (const event of this.spare) event.dispose();
  }

  private returnOldest(): void {
    const { tensor, left } = this.underWay.shift() as { tensor: Tensor; left: Event };
    this.device.compute.wait(left);
    tensor.release();
    this.spare.push(left);
  }
}

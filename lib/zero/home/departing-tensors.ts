// Gradients, or updated weights, on their way to the host: the device holds the last few of them,
// however far ahead the host is.
import type { Device } from '../../runtime/device.js';
import { Event, type Stream } from '../../runtime/stream.js';
import type { Tensor } from '../../tensor/index.js';

/**
 * One is being copied while backward completes the next: with one more, compute only waits where
 * copies are slower.
 */
const underWayAtMost = 2;

/**
 * Owns tensors whose copies are enqueued on one stream. Their memory is returned in the order of
 * compute, which comes after the copy: the next one takes it at once. Returned in the order of the
 * copies it would be of no use to compute before the copy has run, and the whole model's gradients
 * would find a place on the device.
 */
export class DepartingTensors {
  private readonly underWay: { tensor: Tensor; left: Event }[] = [];
  private readonly spare: Event[] = [];

  constructor(
    private readonly device: Device,
    private readonly copies: Stream,
  ) {}

  /** Takes over `tensor`: everything that reads it is enqueued on the stream, or on compute. */
  add(tensor: Tensor): void {
    const left = this.spare.pop() ?? new Event(this.device);
    this.underWay.push({ tensor, left: left.record(this.copies) });
    if (this.underWay.length > underWayAtMost) this.returnOldest();
  }

  /** The step's last one has come: compute waits for none of those left. */
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

// Says once that micro-batches had no label that counts: they train nothing, which is seldom meant.
import { Buffer } from '../../runtime/buffer.js';
import type { Device } from '../../runtime/device.js';
import * as kernels from '../../runtime/kernels.generated.js';
import { Event, Stream } from '../../runtime/stream.js';
import { countEmptyMeans, held, Tensor } from '../../tensor/index.js';

/**
 * Counts on the device and reads one step later, so that no step waits. Owns the count and its copy
 * on the host.
 */
export class EmptyBatches {
  /** [1] f32: cross-entropies without a row that counts. */
  private readonly count: Tensor;
  private readonly onHost: Buffer;
  private readonly fetched: Event;
  private readonly reading: Stream;
  private pending = false;
  private told = false;

  constructor(
    private readonly device: Device,
    private readonly rank: number,
  ) {
    this.count = held(() => Tensor.empty([1], 'f32', device));
    kernels.fill({ out: this.count, value: 0 });
    this.onHost = Buffer.allocatePinned(device, 4);
    this.fetched = new Event(device);
    this.reading = Stream.create(device, 'numbers to the host');
    countEmptyMeans(this.count);
  }

  /** A step's micro-batches have been enqueued: tell() will know of them. */
  fetch(): void {
    if (this.told) return;
    const { compute } = this.device;
    const from = this.count.offset * 4;
    this.onHost.copyFrom(this.count.buffer, { bytes: 4, from }, compute);
    this.fetched.record(compute);
    this.pending = true;
  }

  /** Warns where the last fetch() has found any. Waits for it. */
  tell(): void {
    if (!this.pending) return;
    this.pending = false;
    this.fetched.synchronize();
    const values = new Float32Array(1);
    this.onHost.read(0, values, this.reading);
    const count = values[0] as number;
    if (count === 0) return;
    this.told = true;
    this.stopCounting();
    process.emitWarning(
      `On rank ${this.rank} no label of ${count === 1 ? 'a micro-batch' : `${count} micro-batches`} counts: ` +
        'all are the ignored index. Their loss and their gradient are 0. Check the labels, or leave such samples out.',
      { type: 'DsNotice', code: 'DS_NOTICE' },
    );
  }

  dispose(): void {
    this.tell();
    this.stopCounting();
    this.count.release();
    this.fetched.synchronize();
    this.fetched.dispose();
    this.reading.dispose();
    this.onHost.release();
  }

  /** A later engine may have taken the counting over. */
  private stopCounting(): void {
    const now = countEmptyMeans(null);
    if (now !== this.count) countEmptyMeans(now);
  }
}

// Warns once about micro-batches without valid labels, which train nothing.
import type { Device } from '../../runtime/device.js';
import * as kernels from '../../runtime/kernels.generated.js';
import { LateNumbers } from '../../runtime/late-numbers.js';
import { countEmptyMeans, held, Tensor } from '../../tensor/index.js';

/**
 * Counts on the device and reads one step later, so no step waits. Owns the count and its host
 * copy.
 */
export class EmptyBatches {
  /** [1] f32: number of cross-entropies without a counted row. */
  private readonly count: Tensor;
  private readonly counted: LateNumbers;
  private reported = false;

  constructor(
    device: Device,
    private readonly rank: number,
  ) {
    this.count = held(() => Tensor.empty([1], 'f32', device));
    kernels.fill({ out: this.count, value: 0 });
    this.counted = new LateNumbers(device, 1);
    countEmptyMeans(this.count);
  }

  /** Fetches the count after the micro-batches of a step are enqueued, for report(). */
  fetch(): void {
    if (!this.reported) this.counted.fetch(this.count);
  }

  /** Warns if the last fetch() found any. Waits for it. */
  report(): void {
    const [count = 0] = this.counted.take() ?? [];
    if (count === 0) return;
    this.reported = true;
    this.stopCounting();
    process.emitWarning(
      `On rank ${this.rank} no label of ${count === 1 ? 'a micro-batch' : `${count} micro-batches`} counts: ` +
        'all are the ignored index. Their loss and their gradient are 0. Check the labels, or remove such samples.',
      { type: 'DsNotice', code: 'DS_NOTICE' },
    );
  }

  dispose(): void {
    this.report();
    this.stopCounting();
    this.count.release();
    this.counted.dispose();
  }

  /** A later engine may have replaced the counter. */
  private stopCounting(): void {
    const now = countEmptyMeans(null);
    if (now !== this.count) countEmptyMeans(now);
  }
}

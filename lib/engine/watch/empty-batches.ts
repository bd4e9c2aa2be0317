// Says once that micro-batches had no label that counts: they train nothing, which is seldom meant.
import type { Device } from '../../runtime/device.js';
import * as kernels from '../../runtime/kernels.generated.js';
import { LateNumbers } from '../../runtime/late-numbers.js';
import { countEmptyMeans, held, Tensor } from '../../tensor/index.js';

/**
 * Counts on the device and reads one step later, so that no step waits. Owns the count and its copy
 * on the host.
 */
export class EmptyBatches {
  /** [1] f32: cross-entropies without a row that counts. */
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

  /** A step's micro-batches have been enqueued: report() will know of them. */
  fetch(): void {
    if (!this.reported) this.counted.fetch(this.count);
  }

  /** Warns where the last fetch() has found any. Waits for it. */
  report(): void {
    const [count = 0] = this.counted.take() ?? [];
    if (count === 0) return;
    this.reported = true;
    this.stopCounting();
    process.emitWarning(
      `On rank ${this.rank} no label of ${count === 1 ? 'a micro-batch' : `${count} micro-batches`} counts: ` +
        'all are the ignored index. Their loss and their gradient are 0. Check the labels, or leave such samples out.',
      { type: 'DsNotice', code: 'DS_NOTICE' },
    );
  }

  dispose(): void {
    this.report();
    this.stopCounting();
    this.count.release();
    this.counted.dispose();
  }

  /** A later engine may have taken the counting over. */
  private stopCounting(): void {
    const now = countEmptyMeans(null);
    if (now !== this.count) countEmptyMeans(now);
  }
}

// Warns once about micro-batches without a label that counts. They train nothing.
import type { Device } from '../../runtime/device.js';
import * as kernels from '../../runtime/kernels.generated.js';
import { countEmptyMeans, held, Tensor } from '../../tensor/index.js';

/**
 * Counts cross-entropies without a counted label, on the device. The step decision copies the count
 * to the host, so no step waits.
 */
export class EmptyBatches {
  /** [1] f32: number of cross-entropies without a row that counts. */
  readonly count: Tensor;
  private isReported = false;

  constructor(
    device: Device,
    private readonly rank: number,
  ) {
    this.count = held(() => Tensor.empty([1], 'f32', device));
    kernels.fill({ out: this.count, value: 0 });
    countEmptyMeans(this.count);
  }

  /** Warns once that `count` micro-batches have no label that counts. */
  report(count: number): void {
    if (this.isReported) return;
    this.isReported = true;
    this.stopCounting();
    process.emitWarning(
      `On rank ${this.rank} no label of ${count === 1 ? 'a micro-batch' : `${count} micro-batches`} counts: ` +
        'all are the ignored index. Their loss and their gradient are 0. Check the labels, or remove such samples.',
      { type: 'DsNotice', code: 'DS_NOTICE' },
    );
  }

  dispose(): void {
    this.stopCounting();
    this.count.release();
  }

  /** Ends the counting, unless a later engine counts already. */
  private stopCounting(): void {
    const counter = countEmptyMeans(null);
    if (counter !== this.count) countEmptyMeans(counter);
  }
}

// Buckets of collectives on a separate stream, so that they overlap compute.

import type { Device } from '../runtime/device.js';
import { Event, Stream } from '../runtime/stream.js';
import type { Work } from './wire.js';

export interface BucketOptions {
  /** Minimum elements per bucket. A larger unit forms its own bucket. */
  bucketElements: number;
  /** Run collectives on a separate stream instead of the compute stream. */
  overlap: boolean;
  timer: CommTimer;
}

interface Transfer {
  /** Size in elements. */
  numel: number;
  /** Enqueues the collective on `stream`, where its operands are complete. */
  start(stream: Stream): Work;
  /** Called when the result is complete in the order of `stream`. */
  complete(stream: Stream): void;
  /** If set, compute waits for the bucket, then this frees the operands. This bounds memory. */
  free?(): void;
}

/**
 * Collects collectives in buckets and sends each full bucket at once. A bucket is finished when the
 * next one is sent, or by flush(). So it overlaps the compute of one unit, also on the CPU, where
 * waiting blocks.
 */
export class Buckets {
  readonly stream: Stream;
  private readonly bucket: Transfer[] = [];
  private filledElements = 0;
  private running: { work: Work; transfer: Transfer }[] = [];
  private readonly computed: Event;
  private readonly finished: Event;

  constructor(
    private readonly device: Device,
    private readonly options: BucketOptions,
  ) {
    this.stream = options.overlap
      ? Stream.create(device, 'exchange between ranks')
      : device.compute;
    this.computed = new Event(device);
    this.finished = new Event(device);
  }

  /** Adds the collective of a unit, with operands complete in the order of the compute stream. */
  add(transfer: Transfer): void {
    this.bucket.push(transfer);
    this.filledElements += transfer.numel;
    if (this.filledElements >= this.options.bucketElements) this.send();
  }

  /** Sends the partial bucket, so no collective waits for a later call. */
  dispatch(): void {
    if (this.bucket.length > 0) this.send();
  }

  /** Sends the partial bucket and finishes all buckets. Later compute work sees the results. */
  flush(): void {
    this.dispatch();
    if (this.running.length === 0) return;
    this.finish();
    this.awaitResults();
  }

  private send(): void {
    if (this.options.overlap) this.stream.wait(this.computed.record(this.device.compute));
    const { timer } = this.options;
    const started = this.bucket.map((transfer) => {
      const end = timer.beginCollective(this.stream);
      const work = transfer.start(this.stream);
      end();
      return { transfer, work };
    });
    this.bucket.length = 0;
    this.filledElements = 0;
    this.finish();
    this.running = started;
    if (!this.options.overlap) this.finish();
  }

  private finish(): void {
    const { running } = this;
    this.running = [];
    for (const { work, transfer } of running) {
      work.wait(this.stream);
      transfer.complete(this.stream);
    }
    const freeing = running.filter(({ transfer }) => transfer.free);
    if (freeing.length === 0) return;
    this.awaitResults();
    for (const { transfer } of freeing) transfer.free?.();
  }

  /** Makes later compute work see the results so far. */
  private awaitResults(): void {
    const { compute } = this.device;
    const end = this.options.timer.beginStall(compute);
    compute.wait(this.finished.record(this.stream));
    end();
  }

  dispose(): void {
    this.flush();
    this.stream.synchronize();
    if (this.options.overlap) this.stream.dispose();
    this.computed.dispose();
    this.finished.dispose();
  }
}

/** Measures collectives on the device, and the time that compute waits for them. */
export interface CommTimer {
  /** Starts the measurement of a collective on `stream`. Returns a function that ends it. */
  beginCollective(stream: Stream): () => void;
  /** Starts the measurement of a wait of `compute`. Returns a function that ends it. */
  beginStall(compute: Stream): () => void;
}

const doNothing = (): void => {};

export const untimedComm: CommTimer = {
  beginCollective: () => doNothing,
  beginStall: () => doNothing,
};

// An exchange: collectives of units, collected into buckets, overlapped with compute, and timed.
import type { Device } from '../runtime/device.js';
import { Event, Stream } from '../runtime/stream.js';
import type { Work } from './collectives.js';

export interface ExchangeOptions {
  /** A bucket is sent once it holds this many elements; a larger unit is a bucket of its own. */
  bucketElements: number;
  /** Collectives run on a stream of their own, else in the order of compute. */
  overlap: boolean;
  timer: CommTimer;
}

/** One unit's share of a bucket. */
export interface Transfer {
  /** In elements. */
  numel: number;
  /** Enqueues the collective on `stream`, where its operands are complete. */
  start(stream: Stream): Work;
  /** The result is complete in the order of `stream`. */
  done(stream: Stream): void;
  /**
   * Where given, compute waits for the bucket: operands may be returned in its order, however far
   * ahead the host is.
   */
  free?(): void;
}

/**
 * A bucket is finished when the next one is sent, or by flush(): by then it has had a unit's
 * compute to hide behind, also on the CPU, where waiting blocks.
 */
export class Exchange {
  readonly stream: Stream;
  private readonly bucket: Transfer[] = [];
  private filled = 0;
  private underWay: { work: Work; transfer: Transfer }[] = [];
  private readonly computed: Event;
  private readonly finished: Event;

  constructor(
    private readonly device: Device,
    private readonly options: ExchangeOptions,
  ) {
    this.stream = options.overlap
      ? Stream.create(device, 'exchange between ranks')
      : device.compute;
    this.computed = new Event(device);
    this.finished = new Event(device);
  }

  /** Operands are complete in the order of the compute stream. */
  add(transfer: Transfer): void {
    this.bucket.push(transfer);
    this.filled += transfer.numel;
    if (this.filled >= this.options.bucketElements) this.send();
  }

  /** Sends what is left: no collective waits for a later call any more. */
  dispatch(): void {
    if (this.bucket.length > 0) this.send();
  }

  /** Sends what is left and finishes everything; later compute work sees the results. */
  flush(): void {
    this.dispatch();
    if (this.underWay.length === 0) return;
    this.finish();
    this.awaitResults();
  }

  private send(): void {
    if (this.options.overlap) this.stream.wait(this.computed.record(this.device.compute));
    const { timer } = this.options;
    const sent = this.bucket.map((transfer) => {
      const end = timer.collective(this.stream);
      const work = transfer.start(this.stream);
      end();
      return { transfer, work };
    });
    this.bucket.length = 0;
    this.filled = 0;
    this.finish();
    this.underWay = sent;
    if (!this.options.overlap) this.finish();
  }

  private finish(): void {
    const { underWay } = this;
    this.underWay = [];
    for (const { work, transfer } of underWay) {
      work.wait(this.stream);
      transfer.done(this.stream);
    }
    const freeing = underWay.filter(({ transfer }) => transfer.free);
    if (freeing.length === 0) return;
    this.awaitResults();
    for (const { transfer } of freeing) transfer.free?.();
  }

  /** Later compute work sees the results so far. */
  private awaitResults(): void {
    const { compute } = this.device;
    const end = this.options.timer.stall(compute);
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

/** Times collectives on the device, and how long compute stands still for them. */
export interface CommTimer {
  /**
   * A collective is about to be enqueued on `stream`; the function returned is called when it has
   * been.
   */
  collective(stream: Stream): () => void;
  /** `compute` is about to wait for collectives, likewise. */
  stall(compute: Stream): () => void;
}

const nothing = (): void => {};

/** Times nothing. */
export const untimedComm: CommTimer = { collective: () => nothing, stall: () => nothing };

export interface CommTimes {
  collectives: number;
  /** Milliseconds that collectives took on their streams, waiting for other ranks included. */
  total: number;
  /** Milliseconds that compute stood still for them. */
  exposed: number;
}

interface Span {
  start: Event;
  end: Event;
}

/** Owns two events for each collective and each wait since the last reset(). */
export class EventCommTimer implements CommTimer {
  private readonly collectives: Span[] = [];
  private readonly stalls: Span[] = [];

  constructor(private readonly device: Device) {}

  collective(stream: Stream): () => void {
    return this.open(this.collectives, stream);
  }

  stall(compute: Stream): () => void {
    return this.open(this.stalls, compute);
  }

  /** Sums since the last reset(); waits for the device. */
  times(): CommTimes {
    const sum = (spans: readonly Span[]): number =>
      spans.reduce((total, { start, end }) => {
        end.synchronize();
        return total + end.since(start);
      }, 0);
    const { length } = this.collectives;
    return { collectives: length, total: sum(this.collectives), exposed: sum(this.stalls) };
  }

  reset(): void {
    for (const { start, end } of [...this.collectives, ...this.stalls]) {
      start.dispose();
      end.dispose();
    }
    this.collectives.length = 0;
    this.stalls.length = 0;
  }

  private open(spans: Span[], stream: Stream): () => void {
    const span = { start: new Event(this.device, true), end: new Event(this.device, true) };
    span.start.record(stream);
    return () => {
      span.end.record(stream);
      spans.push(span);
    };
  }
}

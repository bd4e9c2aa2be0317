// Exchange: reduces gradients of units in buckets, overlapped with compute, through a wire.
import type { Device } from '../runtime/device.js';
import type { DType } from '../runtime/dtype.js';
import * as kernels from '../runtime/kernels.generated.js';
import { Event, Stream } from '../runtime/stream.js';
import { held, Tensor } from '../tensor/index.js';
import type { At, Collectives, Work } from './collectives.js';

/**
 * Sums flat gradients over the ranks. A wire may change `full`, and holds it until the returned
 * work is done.
 */
export interface Wire {
  /** Factor of the sums relative to the gradients for the update. */
  readonly factor: number;
  allReduce(full: Tensor, at: At): Work;
  reduceScatter(output: Tensor, full: Tensor, at: At): Work;
}

/** Sends gradients unchanged. */
export class PlainWire implements Wire {
  /** `factor`: number of ranks for the mean; 1 for a sum. */
  constructor(
    private readonly group: Collectives,
    readonly factor: number,
  ) {}

  allReduce(full: Tensor, at: At): Work {
    return this.group.allReduce(full, at);
  }

  reduceScatter(output: Tensor, full: Tensor, at: At): Work {
    return this.group.reduceScatter(output, full, at);
  }
}

/**
 * Divides by `divisor` before the sum, to prevent f16 overflow. Also used for prescale_gradients
 * and gradient_predivide_factor.
 */
export class DividedWire implements Wire {
  readonly factor: number;

  constructor(
    private readonly inner: Wire,
    private readonly divisor: number,
  ) {
    this.factor = inner.factor / divisor;
  }

  allReduce(full: Tensor, at: At): Work {
    this.divide(full, at.stream);
    return this.inner.allReduce(full, at);
  }

  reduceScatter(output: Tensor, full: Tensor, at: At): Work {
    this.divide(full, at.stream);
    return this.inner.reduceScatter(output, full, at);
  }

  private divide(full: Tensor, stream: Stream): void {
    kernels.scale(
      { in: full, out: full, scale: 1 / this.divisor, shift: 0, accumulate: false },
      stream,
    );
  }
}

/** Sums in `dtype` (communication_data_type) and rounds the sums back. */
export class CastWire implements Wire {
  readonly factor: number;

  constructor(
    private readonly inner: Wire,
    private readonly dtype: DType,
  ) {
    this.factor = inner.factor;
  }

  allReduce(full: Tensor, at: At): Work {
    const wide = this.cast(full, at.stream);
    return this.rounded(this.inner.allReduce(wide, at), wide, [wide], full);
  }

  reduceScatter(output: Tensor, full: Tensor, at: At): Work {
    const wide = this.cast(full, at.stream);
    const shard = held(() => Tensor.empty(output.shape, this.dtype, output.device));
    return this.rounded(this.inner.reduceScatter(shard, wide, at), shard, [wide, shard], output);
  }

  private cast(full: Tensor, stream: Stream): Tensor {
    const wide = held(() => Tensor.empty(full.shape, this.dtype, full.device));
    kernels.copy({ in: full, out: wide }, stream);
    return wide;
  }

  private rounded(work: Work, from: Tensor, temporary: readonly Tensor[], to: Tensor): Work {
    return {
      wait: (stream) => {
        work.wait(stream);
        kernels.copy({ in: from, out: to }, stream);
        for (const tensor of temporary) {
          tensor.buffer.releaseOn(stream);
          tensor.release();
        }
      },
    };
  }
}

/**
 * Sums `full` [size * n] over the ranks, and writes this rank's part to `shard` [n], which may be
 * that part of `full`.
 */
export type ToOwner = (
  parts: { wire: Wire; group: Collectives },
  shard: Tensor,
  full: Tensor,
  at: At,
) => Work;

/** Each rank receives only its shard (reduce_scatter, the default). */
export const byReduceScatter: ToOwner = ({ wire }, shard, full, at) =>
  wire.reduceScatter(shard, full, at);

/** Every rank receives everything and keeps its shard (reduce_scatter: false). */
export const byAllReduce: ToOwner = ({ wire, group }, shard, full, at) => {
  const work = wire.allReduce(full, at);
  return {
    wait: (stream) => {
      work.wait(stream);
      const size = full.numel / group.size;
      const own = full.alias([size], undefined, full.offset + group.rank * size);
      const inPlace = shard.buffer === own.buffer && shard.offset === own.offset;
      if (!inPlace) kernels.copy({ in: own, out: shard }, stream);
      own.dispose();
    },
  };
};

export interface ExchangeOptions {
  /** Minimum elements per bucket. A larger unit forms its own bucket. */
  bucketElements: number;
  /** Run collectives on a separate stream instead of the compute stream. */
  overlap: boolean;
  timer: CommTimer;
}

/** The part of one unit in a bucket. */
interface Transfer {
  /** In elements. */
  numel: number;
  /** Enqueues the collective on `stream`, where its operands are complete. */
  start(stream: Stream): Work;
  /** Called when the result is complete in the order of `stream`. */
  done(stream: Stream): void;
  /**
   * If set, compute waits for the bucket, and this frees the operands in the order of compute. This
   * bounds memory even if the host runs far ahead.
   */
  free?(): void;
}

/**
 * A bucket is finished when the next one is sent, or by flush(). By then it has overlapped with the
 * compute of one unit, also on the CPU, where waiting blocks.
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

  /** Adds a unit. Its operands are complete in the order of the compute stream. */
  add(transfer: Transfer): void {
    this.bucket.push(transfer);
    this.filled += transfer.numel;
    if (this.filled >= this.options.bucketElements) this.send();
  }

  /** Sends the partial bucket, so no collective waits for a later call. */
  dispatch(): void {
    if (this.bucket.length > 0) this.send();
  }

  /** Sends the partial bucket and finishes all buckets. Later compute work sees the results. */
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

  /** Makes later compute work see the results so far. */
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

/** Measures collectives on the device, and the time that compute waits for them. */
export interface CommTimer {
  /**
   * Called before a collective is enqueued on `stream`. The caller runs the returned function after
   * it.
   */
  collective(stream: Stream): () => void;
  /**
   * Called before `compute` waits for collectives. The caller runs the returned function after it.
   */
  stall(compute: Stream): () => void;
}

const nothing = (): void => {};

export const untimedComm: CommTimer = { collective: () => nothing, stall: () => nothing };

interface CommTimes {
  collectives: number;
  /** Milliseconds of collectives on their streams, including waits for other ranks. */
  total: number;
  /** Milliseconds that compute waited for them. */
  exposed: number;
}

interface Span {
  start: Event;
  end: Event;
}

/** Owns two events per collective and per wait since the last reset(). */
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

  /** Returns sums since the last reset(). Waits for the device. */
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

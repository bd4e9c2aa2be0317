// The gradient flows of all stages: how the gradient of a unit reaches the partition that this rank
// updates. Flows send gradients in buckets, on a separate stream, so that they overlap compute.

import type { Device } from '../runtime/device.js';
import * as kernels from '../runtime/kernels.generated.js';
import { Event, Stream } from '../runtime/stream.js';
import { copyFlat, sliceFlat } from '../tensor/flat.js';
import { held, Tensor } from '../tensor/index.js';
import type { LayoutEntry, Range } from './layout.js';
import type { Partition } from './partition.js';
import type { Unit } from './unit.js';
import type { Collectives, Wire, Work } from './wire.js';

/**
 * Receives the reduced gradients of a step, one partition at a time. The step control implements
 * it.
 */
export interface GradientReceiver {
  /**
   * Receives partition.grad, complete in the order of `stream`. Records partition.ready on
   * `stream`.
   */
  receiveReduced(partition: Partition, stream: Stream): void;
}

/** The communication of a gradient flow. */
export interface GradientRoute {
  /** Sums gradients over the ranks. */
  wire: Wire;
  /** Reduced gradients are this factor times the gradients for the update. */
  factor: number;
  /** Collects gradients in the order of backward, and reduces full buckets. */
  buckets: Buckets;
}

/** Moves gradients from a unit to the partition that this rank updates. */
export interface GradientFlow {
  /** Reduced gradients are this factor times the gradients for the update. */
  readonly factor: number;
  /** Null if a single rank holds all gradients. */
  readonly route: GradientRoute | null;
  /**
   * Whether reduce() runs after every micro-batch. If not, gradients add up in the unit, and
   * reduce() runs once with their sum.
   */
  readonly takesEach: boolean;
  /** Reduces and frees the gradient of the unit. The last call of a step has a `receiver`. */
  reduce(partition: Partition, receiver: GradientReceiver | null): void;
}

/** Gradients of a single rank: the unit's gradient is also the partition's. */
export const localGradients: GradientFlow = {
  route: null,
  factor: 1,
  takesEach: false,
  reduce(partition, receiver) {
    partition.grad = partition.unit.gradient.take();
    receiver?.receiveReduced(partition, partition.device.compute);
  },
};

/** Stage 0: an all-reduce gives every rank the sum over ranks. */
export const summedGradients = (route: GradientRoute): GradientFlow => ({
  route,
  factor: route.factor,
  takesEach: false,
  reduce(partition, receiver) {
    const { unit } = partition;
    const grad = unit.gradient.take();
    const purpose = `gradient of ${unit.name}`;
    route.buckets.add({
      numel: grad.numel,
      start: (stream) => route.wire.allReduce(grad, { stream, purpose }),
      complete: (stream) => {
        partition.grad = grad;
        receiver?.receiveReduced(partition, stream);
      },
    });
  },
});

/** Stage 0 with steps that exchange other values: each rank then keeps its own gradients. */
export const alternatingGradients = (
  summed: GradientFlow,
  isSummed: () => boolean,
  ownFactor: number,
): GradientFlow => ({
  route: summed.route,
  get factor() {
    return isSummed() ? summed.factor : ownFactor;
  },
  takesEach: false,
  reduce(partition, receiver) {
    partition.isOwnGrad = !isSummed();
    (partition.isOwnGrad ? localGradients : summed).reduce(partition, receiver);
  },
});

/** Stage 1: each rank receives the sum of its shard over ranks. */
export const ownedGradients = (route: GradientRoute): GradientFlow => ({
  route,
  factor: route.factor,
  takesEach: false,
  reduce(partition, receiver) {
    const { unit, range } = partition;
    const full = unit.gradient.take();
    const shard = sliceFlat(full, range);
    const purpose = `gradient of ${unit.name}`;
    route.buckets.add({
      numel: full.numel,
      start: (stream) => route.wire.reduceScatter(shard, full, { stream, purpose }),
      complete: (stream) => {
        full.release();
        partition.grad = shard;
        receiver?.receiveReduced(partition, stream);
      },
    });
  },
});

/** Stages 2 and 3: shards of micro-batches add up in `partition.grad`. */
export const shardedGradients = (route: GradientRoute): GradientFlow => ({
  route,
  factor: route.factor,
  takesEach: true,
  reduce(partition, receiver) {
    const { unit, numel } = partition;
    const full = unit.gradient.take();
    unit.gradient.drop();
    const shard = held(() => Tensor.empty([numel], full.dtype, unit.device));
    let isSummed = false;
    const purpose = `gradient of ${unit.name}`;
    route.buckets.add({
      numel: full.numel,
      start: (stream) => route.wire.reduceScatter(shard, full, { stream, purpose }),
      complete: (stream) => {
        isSummed = partition.grad !== null;
        if (partition.grad) addTo(partition.grad, shard, stream);
        else partition.grad = shard;
        receiver?.receiveReduced(partition, stream);
      },
      free: () => {
        full.release();
        if (isSummed) shard.release();
      },
    });
  },
});

/** Adds `addend` to `sum` in the order of `stream`. */
function addTo(sum: Tensor, addend: Tensor, stream: Stream): void {
  kernels.binary({ a: sum, b: addend, out: sum, op: 'add', accumulate: false }, stream);
}

/**
 * Returns `inner` with a sum before it: the tensor-parallel ranks `group` add up partial gradients.
 */
export function sumPartialGradients(inner: GradientFlow, group: Collectives): GradientFlow {
  const partialOf = new Map<Unit, readonly LayoutEntry[]>();
  return {
    route: inner.route,
    takesEach: inner.takesEach,
    get factor() {
      return inner.factor;
    },
    reduce(partition, receiver) {
      const { unit } = partition;
      const isPartial = (entry: LayoutEntry): boolean => unit.parameterOf(entry).hasPartialGradient;
      const entries = partialOf.get(unit) ?? unit.layout.entries.filter(isPartial);
      partialOf.set(unit, entries);
      if (entries.length > 0) sumEntries(unit, entries, group);
      inner.reduce(partition, receiver);
    },
  };
}

/** Runs one all-reduce for all `entries` of the unit, in the order of the compute stream. */
function sumEntries(unit: Unit, entries: readonly LayoutEntry[], group: Collectives): void {
  const { compute } = unit.device;
  const grad = unit.gradient.take();
  const count = entries.reduce((total, { numel }) => total + numel, 0);
  const packed = held(() => Tensor.empty([count], grad.dtype, unit.device));
  const each = (copy: (entry: LayoutEntry, packedAt: Range) => void): void => {
    let offset = 0;
    for (const entry of entries) {
      copy(entry, { offset, numel: entry.numel });
      offset += entry.numel;
    }
  };
  each((entry, at) => copyFlat(packed, at, grad, entry, compute));
  const purpose = `parts of gradients of ${unit.name}`;
  group.allReduce(packed, { stream: compute, purpose }).wait(compute);
  each((entry, at) => copyFlat(grad, entry, packed, at, compute));
  packed.release();
  grad.release();
}

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

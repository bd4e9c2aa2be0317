// A ZeRO stage moves the gradients of units to the partitions that ranks update, and updated
// weights back. This file routes each unit to the flows of its group of ranks, and has the gradient
// flows of all stages. weights.ts and gathered-weights.ts have the weight flows.

import type { Device } from '../runtime/device.js';
import { argumentError } from '../runtime/input-errors.js';
import * as kernels from '../runtime/kernels.generated.js';
import { required } from '../runtime/required.js';
import { Event, Stream } from '../runtime/stream.js';
import { copyFlat, sliceFlat } from '../tensor/flat.js';
import { held, Tensor } from '../tensor/index.js';
import type { LayoutEntry, Range } from './layout.js';
import {
  Partition,
  type Unit,
  type WeightShard,
  type WeightStore,
  type WeightUnit,
} from './unit.js';
import type { Collectives, Wire, Work } from './wire.js';

/** Receives the gradients of a step, one partition at a time. */
export interface GradientReceiver {
  /** Receives partition.grad, complete in the order of `stream`. Records partition.ready there. */
  receiveReduced(partition: Partition, stream: Stream): void;
}

/** How gradients reach other ranks. */
export interface GradientRoute {
  /** Sums gradients over the ranks. */
  wire: Wire;
  /** Factor of the sums relative to the gradients for the update. */
  factor: number;
  /** Gradients, in the order of backward. */
  buckets: Buckets;
}

/** Moves gradients from a unit to the partition that this rank updates. */
export interface GradientFlow {
  /** Factor of reduced gradients relative to the gradients for the update. */
  readonly factor: number;
  /** Null if no rank needs gradients of another rank. */
  readonly route: GradientRoute | null;
  /** Whether it reduces every micro-batch. Else they add up in the unit, and it reduces the sum. */
  readonly takesEach: boolean;
  /** Reduces and frees the unit's gradient. The last call of a step has a `receiver`. */
  reduce(partition: Partition, receiver: GradientReceiver | null): void;
}

/** The range of a shard, the storage of its weights, and the range that the rank counts. */
export type OwnedShard = [range: Range, store: WeightStore, counted?: Range];

/** Moves weights between the ranks. See ZeroStages; methods without a use in a flow are absent. */
export interface WeightFlow {
  /** Whether weights are gathered by acquire() and freed by release(). */
  readonly isSharded: boolean;
  readonly slotBytes?: number;
  /** Returns the shard of a unit on this rank. The caller owns the storage. */
  keep(unit: WeightUnit): OwnedShard;
  prepareUnit?(unit: WeightUnit): void;
  adoptShard?(shard: WeightShard): void;
  acquire?(unit: WeightUnit): void;
  release?(unit: WeightUnit): void;
  /** Called after every unit's gradient of this backward is sent. */
  endBackward?(): void;
  publish?(shard: WeightShard, stream: Stream, changed?: Event): void;
  dispatch?(): void;
  /** Frees gathered weights. The next acquire() gathers them again. */
  vacate?(): void;
  dispose?(): void;
}

/** The units of a group of ranks, each in forward order, and their flows. */
export interface ZeroStage {
  units: readonly Unit[];
  frozen: readonly WeightUnit[];
  gradients: GradientFlow;
  weights: WeightFlow;
}

/**
 * Routes each unit to the stage of its group. One configuration creates all stages, so they agree
 * on sharded weights and factors. Owns flows, partitions and shards.
 */
export class ZeroStages {
  /** Whether weights are gathered by acquire() and freed by release(). */
  readonly shardsWeights: boolean;
  /** A partition of each unit, in forward order. */
  readonly partitions: readonly Partition[];
  /** The shards of frozen units: their weights are gathered and freed, and never change. */
  readonly frozen: readonly WeightShard[];
  private readonly partitionOf = new Map<WeightUnit, Partition>();
  private readonly stageOf = new Map<WeightUnit, ZeroStage>();

  /** `units`: the units of all stages, in forward order. Throws DS_ARGUMENT if stages differ. */
  constructor(
    units: readonly Unit[],
    private readonly stages: readonly ZeroStage[],
  ) {
    this.frozen = stages.flatMap((stage) => {
      const { weights } = stage;
      for (const unit of [...stage.units, ...stage.frozen]) this.stageOf.set(unit, stage);
      for (const unit of stage.units) {
        this.partitionOf.set(unit, new Partition(unit, ...weights.keep(unit)));
      }
      return stage.frozen.map((unit) => new Partition(unit, ...weights.keep(unit)));
    });
    this.partitions = units.map((unit) => required(this.partitionOf.get(unit)));
    this.common('gradient factor', ({ gradients }) => gradients.factor, 1);
    this.shardsWeights = this.common('sharding', ({ weights }) => weights.isSharded, false);
  }

  /** Factor of reduced gradients relative to the gradients for the update. */
  get gradientFactor(): number {
    return this.common('gradient factor', ({ gradients }) => gradients.factor, 1);
  }

  /** Bytes of pinned slots for weights on a disk. */
  get slotBytes(): number {
    return this.stages.reduce((sum, { weights }) => sum + (weights.slotBytes ?? 0), 0);
  }

  /** Prepares the unit's memory, before its initial weights are written. */
  prepareUnit(unit: WeightUnit): void {
    this.of(unit).weights.prepareUnit?.(unit);
  }

  /** Stores this rank's shard of the initial weights, after they are written on compute. */
  adoptShard(shard: WeightShard): void {
    this.of(shard.unit).weights.adoptShard?.(shard);
  }

  /** Lets later compute work read the unit's weights. */
  acquire(unit: WeightUnit): void {
    this.of(unit).weights.acquire?.(unit);
  }

  /** Ends the reads until the next acquire(). */
  release(unit: WeightUnit): void {
    this.of(unit).weights.release?.(unit);
  }

  /**
   * Called when the unit's gradient of a micro-batch is complete on the compute stream. After the
   * last one, `receiver` gets the gradient of the partition, now or in flush(); else it is null.
   */
  reduce(unit: WeightUnit, receiver: GradientReceiver | null): void {
    const { gradients } = this.of(unit);
    if (!gradients.takesEach && !receiver) return;
    gradients.reduce(required(this.partitionOf.get(unit)), receiver);
  }

  /** Called when no micro-batch follows. `receiver` gets the gradient, now or in flush(). */
  conclude(unit: Unit, receiver: GradientReceiver): void {
    const { gradients } = this.of(unit);
    const partition = required(this.partitionOf.get(unit));
    // After a flush(), every shard has arrived.
    if (gradients.takesEach) receiver.receiveReduced(partition, partition.device.compute);
    else gradients.reduce(partition, receiver);
  }

  /** Called after reduce() of every unit. Later compute work sees the results of transfers. */
  flush(): void {
    for (const { weights, gradients } of this.stages) {
      weights.endBackward?.();
      gradients.route?.buckets.flush();
    }
  }

  /**
   * The shard's weights change in the order of `stream`, before `changed` if given; `changed` keeps
   * its mark until the next publish(). Ranks with whole units receive the weights.
   */
  publish(shard: WeightShard, stream: Stream, changed?: Event): void {
    this.of(shard.unit).weights.publish?.(shard, stream, changed);
    shard.unit.markChanged();
  }

  /**
   * Called after every partition of the update is published. Starts their collectives at the same
   * place on all ranks, so that waiting for weights needs no call of another rank.
   */
  dispatch(): void {
    for (const { weights } of this.stages) weights.dispatch?.();
  }

  /** Frees gathered weights. The next acquire() gathers them again. */
  vacate(): void {
    for (const { weights } of this.stages) weights.vacate?.();
  }

  dispose(): void {
    for (const { weights, gradients } of this.stages) {
      weights.dispose?.();
      gradients.route?.buckets.dispose();
    }
    for (const shard of [...this.partitionOf.values(), ...this.frozen]) shard.dispose();
  }

  private of(unit: WeightUnit): ZeroStage {
    return required(this.stageOf.get(unit));
  }

  /** Returns the common value of `of` over the stages; `fallback` without stages. */
  private common<T>(what: string, of: (stage: ZeroStage) => T, fallback: T): T {
    const values = [...new Set(this.stages.map(of))];
    if (values.length <= 1) return values[0] ?? fallback;
    throw argumentError(
      'ZeroStages',
      `one ${what} for all stages of a model`,
      values.join(' and '),
      'Make the flows of every group from one configuration.',
    );
  }
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

/** Adds `addend` to `sumEntries` in the order of `stream`. */
function addTo(sum: Tensor, addend: Tensor, stream: Stream): void {
  kernels.binary({ a: sum, b: addend, out: sum, op: 'add', accumulate: false }, stream);
}

/** Wraps the flow `inner`. `group`: the tensor-parallel ranks. */
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

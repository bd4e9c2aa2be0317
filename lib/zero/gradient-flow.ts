// Gradient flows: move gradients from a unit to the partition that this rank updates.
import * as kernels from '../runtime/kernels.generated.js';
import type { Stream } from '../runtime/stream.js';
import { sliceFlat } from '../tensor/flat.js';
import { held, Tensor } from '../tensor/index.js';
import type { Collectives } from './collectives.js';
import type { Exchange, ToOwner, Wire } from './exchange.js';
import type { Partition } from './shard.js';

/** Receives the gradients of a step, one partition at a time. */
export interface GradientReceiver {
  /**
   * Called when partition.grad is complete in the order of `stream`. Records partition.ready there.
   */
  reduced(partition: Partition, stream: Stream): void;
}

export interface GradientFlow {
  /** Factor of reduced gradients relative to the gradients for the update. */
  readonly factor: number;
  /**
   * Called when the unit's gradient of a micro-batch is complete on the compute stream. If it was
   * the last one of the step, `receiver` gets the partition's gradient, now or in flush(). Else
   * `receiver` is null.
   */
  reduce(partition: Partition, receiver: GradientReceiver | null): void;
  /**
   * Called when no micro-batch follows after reduce() and flush(). `receiver` gets the gradient,
   * now or in the next flush().
   */
  conclude(partition: Partition, receiver: GradientReceiver): void;
  /** Finishes all transfers. Later compute work sees the results. */
  flush(): void;
  dispose(): void;
}

/**
 * Gradients of a single rank. Micro-batches add up in the unit's gradient, which is also the
 * partition's. Nothing is reduced.
 */
export class LocalGradients implements GradientFlow {
  readonly factor = 1;

  reduce(partition: Partition, receiver: GradientReceiver | null): void {
    if (receiver) this.conclude(partition, receiver);
  }

  conclude(partition: Partition, receiver: GradientReceiver): void {
    const { compute } = partition.device;
    partition.grad = partition.unit.gradient.take();
    receiver.reduced(partition, compute);
  }

  flush(): void {}

  dispose(): void {}
}

/** The parts of flows over several ranks. The flow owns the exchange. */
interface GradientParts {
  group: Collectives;
  wire: Wire;
  /** Moves a unit's summed gradient to the owners of its shards. */
  toOwner: ToOwner;
  /** Gradients, in the order of backward. */
  exchange: Exchange;
}

/** By default, micro-batches add up in the unit, and conclude() sends their sum. */
abstract class ExchangedGradients implements GradientFlow {
  readonly factor: number;

  constructor(protected readonly parts: GradientParts) {
    this.factor = parts.wire.factor;
  }

  abstract conclude(partition: Partition, receiver: GradientReceiver): void;

  reduce(partition: Partition, receiver: GradientReceiver | null): void {
    if (receiver) this.conclude(partition, receiver);
  }

  flush(): void {
    this.parts.exchange.flush();
  }

  dispose(): void {
    this.parts.exchange.dispose();
  }
}

/**
 * Stage 0: micro-batches add up on every rank, then an all-reduce gives every rank the sum over
 * ranks.
 */
export class SummedGradients extends ExchangedGradients {
  conclude(partition: Partition, receiver: GradientReceiver): void {
    const { unit } = partition;
    const grad = unit.gradient.take();
    const purpose = `gradient of ${unit.name}`;
    this.parts.exchange.add({
      numel: grad.numel,
      start: (stream) => this.parts.wire.allReduce(grad, { stream, purpose }),
      done: (stream) => {
        partition.grad = grad;
        receiver.reduced(partition, stream);
      },
    });
  }
}

/**
 * Stage 0 with an optimizer that exchanges other values in some steps. Gradients are summed in the
 * other steps; in these steps, each rank keeps its own.
 */
export class AlternatingGradients implements GradientFlow {
  private readonly own = new LocalGradients();

  constructor(
    private readonly summed: GradientFlow,
    private readonly options: {
      /** Whether gradients are summed in this step. */
      isSummed: () => boolean;
      /** Factor of local gradients relative to the gradients for the update. */
      ownFactor: number;
    },
  ) {}

  get factor(): number {
    return this.options.isSummed() ? this.summed.factor : this.options.ownFactor;
  }

  reduce(partition: Partition, receiver: GradientReceiver | null): void {
    this.flowOf(partition).reduce(partition, receiver);
  }

  conclude(partition: Partition, receiver: GradientReceiver): void {
    this.flowOf(partition).conclude(partition, receiver);
  }

  flush(): void {
    this.summed.flush();
  }

  dispose(): void {
    this.summed.dispose();
  }

  private flowOf(partition: Partition): GradientFlow {
    partition.isOwnGrad = !this.options.isSummed();
    return partition.isOwnGrad ? this.own : this.summed;
  }
}

/**
 * Stage 1: micro-batches add up on every rank, then each rank receives the sum of its shard over
 * ranks.
 */
export class OwnedGradients extends ExchangedGradients {
  conclude(partition: Partition, receiver: GradientReceiver): void {
    const { unit, range } = partition;
    const full = unit.gradient.take();
    const shard = sliceFlat(full, range);
    const purpose = `gradient of ${unit.name}`;
    this.parts.exchange.add({
      numel: full.numel,
      start: (stream) => this.parts.toOwner(this.parts, shard, full, { stream, purpose }),
      done: (stream) => {
        full.release();
        partition.grad = shard;
        receiver.reduced(partition, stream);
      },
    });
  }
}

/**
 * Stages 2 and 3: the gradient of every micro-batch is reduced and freed. Shards add up in
 * `partition.grad`.
 */
export class ShardedGradients extends ExchangedGradients {
  override reduce(partition: Partition, receiver: GradientReceiver | null): void {
    const { unit, numel } = partition;
    const full = unit.gradient.take();
    unit.gradient.drop();
    const shard = held(() => Tensor.empty([numel], full.dtype, unit.device));
    let isSummed = false;
    const purpose = `gradient of ${unit.name}`;
    this.parts.exchange.add({
      numel: full.numel,
      start: (stream) => this.parts.toOwner(this.parts, shard, full, { stream, purpose }),
      done: (stream) => {
        isSummed = partition.grad !== null;
        if (partition.grad) add(partition.grad, shard, stream);
        else partition.grad = shard;
        receiver?.reduced(partition, stream);
      },
      free: () => {
        full.release();
        if (isSummed) shard.release();
      },
    });
  }

  /** After a flush(), every shard has arrived. */
  conclude(partition: Partition, receiver: GradientReceiver): void {
    receiver.reduced(partition, partition.device.compute);
  }
}

/** Adds `part` to `sum` in the order of `stream`. */
function add(sum: Tensor, addend: Tensor, stream: Stream): void {
  kernels.binary({ a: sum, b: addend, out: sum, op: 'add', accumulate: false }, stream);
}

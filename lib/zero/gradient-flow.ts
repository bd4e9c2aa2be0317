// How gradients flow: from what backward leaves in a unit to the partition that this rank updates.
import * as kernels from '../runtime/kernels.generated.js';
import type { Stream } from '../runtime/stream.js';
import { held, Tensor } from '../tensor/index.js';
import type { Collectives } from './collectives.js';
import type { Exchange } from './exchange.js';
import { sliceFlat } from './flat.js';
import type { Partition } from './partition.js';
import type { ToOwner, Wire } from './wire.js';

/** Who takes the gradients of a step, partition by partition. */
export interface GradientReceiver {
  /** partition.grad is complete in the order of `stream`. Records partition.ready there. */
  reduced(partition: Partition, stream: Stream): void;
}

export interface GradientFlow {
  /** What reduced gradients are multiplied with, compared to what the update is to see. */
  readonly factor: number;
  /**
   * The unit's gradient of one more micro-batch is complete on the compute stream. Where it was the
   * step's last, `receiver` is told of the partition's, now or in flush(); else it is null.
   */
  reduce(partition: Partition, receiver: GradientReceiver | null): void;
  /**
   * No micro-batch follows those given to reduce() and flush(): `receiver` is told, now or in the
   * next flush().
   */
  conclude(partition: Partition, receiver: GradientReceiver): void;
  /** Nothing stays under way; later compute work sees the results. */
  flush(): void;
  dispose(): void;
}

/**
 * Gradients of one rank: the unit's is the partition's; micro-batches add up in it, and nothing is
 * reduced.
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

/** What flows over several ranks are made of. The flow owns the exchange. */
export interface GradientParts {
  group: Collectives;
  wire: Wire;
  /** How a unit's summed gradient reaches the owners of its shards. */
  toOwner: ToOwner;
  /** Gradients, in the order of backward. */
  exchange: Exchange;
}

/**
 * Micro-batches add up in the unit, and what conclude() sends is their sum, unless a flow does
 * otherwise.
 */
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
 * Stage 0: micro-batches add up on every rank, and the sum is summed over the ranks: each keeps all
 * of it.
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
 * Stage 0 under an optimizer that exchanges something else in some steps: gradients are summed in
 * the others, and here each rank keeps its own.
 */
export class AlternatingGradients implements GradientFlow {
  private readonly own = new LocalGradients();

  constructor(
    private readonly summed: GradientFlow,
    private readonly options: {
      /** Whether gradients are summed in the step under way. */
      isSummed: () => boolean;
      /** What own gradients are multiplied with, compared to what the update is to see. */
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
 * Stage 1: micro-batches add up on every rank, and each rank gets the sum of its shard over the
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
 * Stages 2 and 3: every micro-batch's gradient is reduced and freed; the shards add up in
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

  /** After a flush() every shard has arrived. */
  conclude(partition: Partition, receiver: GradientReceiver): void {
    receiver.reduced(partition, partition.device.compute);
  }
}

/** Adds `part` to `sum` in the order of `stream`. */
function add(sum: Tensor, part: Tensor, stream: Stream): void {
  kernels.binary({ a: sum, b: part, out: sum, op: 'add', accumulate: false }, stream);
}

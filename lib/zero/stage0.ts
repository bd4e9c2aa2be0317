// Stage 0, and a single rank: every rank keeps whole gradients and updates whole units.

import type { Buckets } from './bucket.js';
import type { Collectives } from './collectives.js';
import { shardOf } from './layout.js';
import { InMemory, type Partition } from './shard.js';
import type { GradientFlow, GradientReceiver, Kept, WeightFlow } from './stage.js';
import type { WeightUnit } from './unit.js';
import type { Wire } from './wire.js';

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
}

/** The way of gradients to other ranks. */
export interface GradientRoute {
  /** Sums gradients over the ranks. */
  wire: Wire;
  /** Factor of the sums relative to the gradients for the update. */
  factor: number;
  /** Gradients, in the order of backward. */
  buckets: Buckets;
}

/**
 * Stage 0: micro-batches add up on every rank, then an all-reduce gives every rank the sum over
 * ranks.
 */
export class SummedGradients implements GradientFlow {
  readonly factor: number;

  constructor(private readonly route: GradientRoute) {
    this.factor = route.factor;
  }

  reduce(partition: Partition, receiver: GradientReceiver | null): void {
    if (receiver) this.conclude(partition, receiver);
  }

  conclude(partition: Partition, receiver: GradientReceiver): void {
    const { unit } = partition;
    const grad = unit.gradient.take();
    const purpose = `gradient of ${unit.name}`;
    this.route.buckets.add({
      numel: grad.numel,
      start: (stream) => this.route.wire.allReduce(grad, { stream, purpose }),
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

  private flowOf(partition: Partition): GradientFlow {
    partition.isOwnGrad = !this.options.isSummed();
    return partition.isOwnGrad ? this.own : this.summed;
  }
}

/** Every rank updates the whole unit. */
export class WholeWeights implements WeightFlow {
  readonly isSharded = false;

  constructor(private readonly group: Pick<Collectives, 'rank' | 'size'>) {}

  keep(unit: WeightUnit): Kept {
    const { numel } = unit.layout;
    // The norm is summed shard by shard at every stage, for equal bits.
    const counted = shardOf(numel, this.group.rank, this.group.size);
    return [{ offset: 0, numel }, new InMemory(unit.allocate().retain()), counted];
  }
}

// Stage 0, and a single rank: every rank keeps whole gradients and updates whole units.

import { shardOf } from './layout.js';
import { MemoryStore } from './shard.js';
import type { GradientFlow, GradientRoute, OwnedShard, WeightFlow } from './stage.js';
import type { WeightUnit } from './unit.js';
import type { Collectives } from './wire.js';

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

/** Every rank updates the whole unit. */
export class WholeWeights implements WeightFlow {
  readonly isSharded = false;

  constructor(private readonly group: Pick<Collectives, 'rank' | 'size'>) {}

  keep(unit: WeightUnit): OwnedShard {
    const { numel } = unit.layout;
    // The norm is summed shard by shard at every stage, for equal bits.
    const counted = shardOf(numel, this.group.rank, this.group.size);
    return [{ offset: 0, numel }, new MemoryStore(unit.allocate().retain()), counted];
  }
}

// The gradient flows of all stages: how the gradient of a unit reaches the partition that this rank
// updates.

import * as kernels from '../runtime/kernels.generated.js';
import type { Stream } from '../runtime/stream.js';
import { copyFlat, sliceFlat } from '../tensor/flat.js';
import { held, Tensor } from '../tensor/index.js';
import type { LayoutEntry, Range } from './layout.js';
import type { GradientFlow, GradientRoute } from './stage.js';
import type { Unit } from './unit.js';
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

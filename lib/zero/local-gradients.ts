// Gradients of one rank: complete as they are, nothing is reduced.
import type { Stream } from '../runtime/stream.js';
import type { Partition } from './partition.js';

type OnReduced = (partition: Partition, stream: Stream) => void;

/** How a unit's gradients become the partition's. */
export interface GradientFlow {
  /** The unit's gradient of one more micro-batch is complete on the compute stream. */
  reduce(partition: Partition): void;
  /** That was the step's last: `onReduced` is told when partition.grad is complete, now or after a flush. */
  settle(partition: Partition, onReduced: OnReduced | null): void;
}

/** The unit's gradient is the partition's; micro-batches add up in it. */
export const localGradients: GradientFlow = {
  reduce() {},
  settle(partition, onReduced) {
    const { compute } = partition.device;
    partition.grad = partition.unit.takeGrad();
    partition.ready.record(compute);
    onReduced?.(partition, compute);
  },
};

// Gradients of which a rank keeps only its shard: reduced at every micro-batch, summed over the step.

import * as kernels from '../runtime/kernels.generated.js';
import type { Stream } from '../runtime/stream.js';
import { held, Tensor } from '../tensor/index.js';
import type { GradientParts } from './group-stage.js';
import type { GradientFlow } from './local-gradients.js';
import type { Partition } from './partition.js';

/** `partition.grad` holds the sum of the micro-batches so far. */
export class ShardedGradients implements GradientFlow {
  constructor(private readonly parts: GradientParts) {}

  /** Reduces the unit's full gradient and frees it. */
  reduce(partition: Partition): void {
    const { unit, numel } = partition;
    const full = unit.takeGrad();
    unit.dropGrad();
    const shard = held(() => Tensor.empty([numel], full.dtype, unit.device));
    let isSummed = false;
    const purpose = `gradient of ${unit.name}`;
    this.parts.gradients.add({
      numel: full.numel,
      start: (stream) => this.parts.toOwner(this.parts, shard, full, { stream, purpose }),
      done: (stream) => {
        isSummed = partition.grad !== null;
        if (partition.grad) add(partition.grad, shard, stream);
        else partition.grad = shard;
        partition.ready.record(stream);
      },
      free: () => {
        full.release();
        if (isSummed) shard.release();
      },
    });
  }

  /** Calls `onReduced` once the gradients of the step are complete: transfers are done in their order. */
  settle(partition: Partition, onReduced: Parameters<GradientFlow['settle']>[1]): void {
    this.parts.gradients.add({
      numel: 0,
      start: () => ({ wait() {} }),
      done: (stream) => onReduced?.(partition, stream),
    });
  }
}

/** Adds `part` to `sum` in the order of `stream`. */
function add(sum: Tensor, part: Tensor, stream: Stream): void {
  kernels.binary({ a: sum, b: part, out: sum, op: 'add', accumulate: false }, stream);
}

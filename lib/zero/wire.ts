// The collectives that ZeRO uses, and wires. A wire sums gradients over ranks; the plain wire is
// the group itself. Wrappers of a wire change how the sum is computed.
import type { DType } from '../runtime/dtype.js';
import * as kernels from '../runtime/kernels.generated.js';
import type { Stream } from '../runtime/stream.js';
import type { View } from '../runtime/view.js';
import { held, Tensor } from '../tensor/index.js';
import { viewOf } from '../tensor/ops/shapes.js';
import { markChanged } from '../tensor/tape.js';

export interface Work {
  /**
   * Makes later work of `stream` wait for the result. On the CPU, it blocks. Throws DS_COMM if the
   * collective fails.
   */
  wait(stream: Stream): void;
}

export interface CollectiveStart {
  /** The collective starts after the work that is enqueued on `stream`. */
  stream: Stream;
  /** Unit and purpose, for errors. The ranks compare it. */
  purpose: string;
}

/** Every rank calls the same collectives in the same order. Tensors are flat and contiguous. */
export interface Collectives {
  readonly rank: number;
  readonly size: number;
  /** Copies the `tensor` of rank `root` to every rank. */
  broadcast(tensor: View, root: number, at: CollectiveStart): Work;
  allReduce(tensor: Tensor, at: CollectiveStart): Work;
  /**
   * Sums `input` [size * n] over the ranks. `output` [n] gets this rank's range of the sum; it may
   * be that range of `input`.
   */
  reduceScatter(output: Tensor, input: Tensor, at: CollectiveStart): Work;
  /**
   * Splits `input` and `output` [size * n] into one range per rank. Sends range j of `input` to
   * range `rank` of rank j's `output`.
   */
  allToAll(output: View, input: View, at: CollectiveStart): Work;
  /**
   * Gathers the `input` [n] of every rank into `output` [size * n]. `input` may be this rank's
   * range of `output`.
   */
  allGather(output: View, input: View, at: CollectiveStart): Work;
}

/** Copies the values of rank `root` to every rank, in the order of the compute stream. */
export function broadcastValues(group: Collectives, values: Tensor, root = 0): void {
  if (group.size === 1) return;
  const { compute } = values.device;
  const memory = viewOf(values, values.shape, values.strides);
  group.broadcast(memory, root, { stream: compute, purpose: 'values of one rank' }).wait(compute);
  markChanged(values);
}

/** Sums flat gradients over the ranks. A wire may change the input until the work is done. */
export type Wire = Pick<Collectives, 'allReduce' | 'reduceScatter'>;

/** Divides gradients before the sum, so that f16 does not overflow. Also for prescale_gradients. */
export class DividedWire implements Wire {
  constructor(
    private readonly inner: Wire,
    private readonly divisor: number,
  ) {}

  allReduce(full: Tensor, at: CollectiveStart): Work {
    this.divide(full, at.stream);
    return this.inner.allReduce(full, at);
  }

  reduceScatter(output: Tensor, full: Tensor, at: CollectiveStart): Work {
    this.divide(full, at.stream);
    return this.inner.reduceScatter(output, full, at);
  }

  private divide(full: Tensor, stream: Stream): void {
    const scale = 1 / this.divisor;
    kernels.scale({ in: full, out: full, scale, shift: 0, accumulate: false }, stream);
  }
}

/** Sums in `dtype` (communication_data_type), then rounds to the dtype of the gradients. */
export class CastWire implements Wire {
  constructor(
    private readonly inner: Wire,
    private readonly dtype: DType,
  ) {}

  allReduce(full: Tensor, at: CollectiveStart): Work {
    const wide = this.cast(full, at.stream);
    return this.roundAfter(this.inner.allReduce(wide, at), wide, [wide], full);
  }

  reduceScatter(output: Tensor, full: Tensor, at: CollectiveStart): Work {
    const wide = this.cast(full, at.stream);
    const shard = held(() => Tensor.empty(output.shape, this.dtype, output.device));
    return this.roundAfter(this.inner.reduceScatter(shard, wide, at), shard, [wide, shard], output);
  }

  private cast(full: Tensor, stream: Stream): Tensor {
    const wide = held(() => Tensor.empty(full.shape, this.dtype, full.device));
    kernels.copy({ in: full, out: wide }, stream);
    return wide;
  }

  private roundAfter(work: Work, from: Tensor, temporary: readonly Tensor[], to: Tensor): Work {
    return {
      wait: (stream) => {
        work.wait(stream);
        kernels.copy({ in: from, out: to }, stream);
        for (const tensor of temporary) releaseOn(stream, tensor);
      },
    };
  }
}

/** Releases `tensor`. The memory is freed in the order of `stream`, its last user. */
export function releaseOn(stream: Stream, tensor: Tensor): void {
  tensor.buffer.releaseOn(stream);
  tensor.release();
}

/**
 * Replaces reduce-scatter by all-reduce; each rank then keeps its shard (reduce_scatter: false).
 */
export class AllReduceWire implements Wire {
  constructor(
    private readonly inner: Wire,
    private readonly group: Pick<Collectives, 'rank' | 'size'>,
  ) {}

  allReduce(full: Tensor, at: CollectiveStart): Work {
    return this.inner.allReduce(full, at);
  }

  reduceScatter(output: Tensor, full: Tensor, at: CollectiveStart): Work {
    const { rank, size } = this.group;
    const work = this.inner.allReduce(full, at);
    return {
      wait: (stream) => {
        work.wait(stream);
        const numel = full.numel / size;
        const ownShard = full.alias([numel], undefined, full.offset + rank * numel);
        const inPlace = output.buffer === ownShard.buffer && output.offset === ownShard.offset;
        if (!inPlace) kernels.copy({ in: ownShard, out: output }, stream);
        ownShard.dispose();
      },
    };
  }
}

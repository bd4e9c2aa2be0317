// Wires: reduce gradients unchanged, divided, or in another dtype, to all ranks or to the owners.
import type { DType } from '../runtime/dtype.js';
import * as kernels from '../runtime/kernels.generated.js';
import type { Stream } from '../runtime/stream.js';
import { held, Tensor } from '../tensor/index.js';
import type { At, Collectives, Work } from './collectives.js';

/**
 * Sums flat gradients over the ranks. A wire may change `full`, and holds it until the returned
 * work is done.
 */
export interface Wire {
  /** Factor of the sums relative to the gradients for the update. */
  readonly factor: number;
  allReduce(full: Tensor, at: At): Work;
  reduceScatter(output: Tensor, full: Tensor, at: At): Work;
}

/** Sends gradients unchanged. */
export class PlainWire implements Wire {
  /** `factor`: number of ranks for the mean; 1 for a sum. */
  constructor(
    private readonly group: Collectives,
    readonly factor: number,
  ) {}

  allReduce(full: Tensor, at: At): Work {
    return this.group.allReduce(full, at);
  }

  reduceScatter(output: Tensor, full: Tensor, at: At): Work {
    return this.group.reduceScatter(output, full, at);
  }
}

/**
 * Divides by `divisor` before the sum, to prevent f16 overflow. Also used for prescale_gradients
 * and gradient_predivide_factor.
 */
export class DividedWire implements Wire {
  readonly factor: number;

  constructor(
    private readonly inner: Wire,
    private readonly divisor: number,
  ) {
    this.factor = inner.factor / divisor;
  }

  allReduce(full: Tensor, at: At): Work {
    this.divide(full, at.stream);
    return this.inner.allReduce(full, at);
  }

  reduceScatter(output: Tensor, full: Tensor, at: At): Work {
    this.divide(full, at.stream);
    return this.inner.reduceScatter(output, full, at);
  }

  private divide(full: Tensor, stream: Stream): void {
    kernels.scale(
      { in: full, out: full, scale: 1 / this.divisor, shift: 0, accumulate: false },
      stream,
    );
  }
}

/** Sums in `dtype` (communication_data_type) and rounds the sums back. */
export class CastWire implements Wire {
  readonly factor: number;

  constructor(
    private readonly inner: Wire,
    private readonly dtype: DType,
  ) {
    this.factor = inner.factor;
  }

  allReduce(full: Tensor, at: At): Work {
    const wide = this.cast(full, at.stream);
    return this.rounded(this.inner.allReduce(wide, at), wide, [wide], full);
  }

  reduceScatter(output: Tensor, full: Tensor, at: At): Work {
    const wide = this.cast(full, at.stream);
    const shard = held(() => Tensor.empty(output.shape, this.dtype, output.device));
    return this.rounded(this.inner.reduceScatter(shard, wide, at), shard, [wide, shard], output);
  }

  private cast(full: Tensor, stream: Stream): Tensor {
    const wide = held(() => Tensor.empty(full.shape, this.dtype, full.device));
    kernels.copy({ in: full, out: wide }, stream);
    return wide;
  }

  private rounded(work: Work, from: Tensor, temporary: readonly Tensor[], to: Tensor): Work {
    return {
      wait: (stream) => {
        work.wait(stream);
        kernels.copy({ in: from, out: to }, stream);
        for (const tensor of temporary) {
          tensor.buffer.releaseOn(stream);
          tensor.release();
        }
      },
    };
  }
}

/**
 * Sums `full` [size * n] over the ranks, and writes this rank's part to `shard` [n], which may be
 * that part of `full`.
 */
export type ToOwner = (
  parts: { wire: Wire; group: Collectives },
  shard: Tensor,
  full: Tensor,
  at: At,
) => Work;

/** Each rank receives only its shard (reduce_scatter, the default). */
export const byReduceScatter: ToOwner = ({ wire }, shard, full, at) =>
  wire.reduceScatter(shard, full, at);

/** Every rank receives everything and keeps its shard (reduce_scatter: false). */
export const byAllReduce: ToOwner = ({ wire, group }, shard, full, at) => {
  const work = wire.allReduce(full, at);
  return {
    wait: (stream) => {
      work.wait(stream);
      const size = full.numel / group.size;
      const own = full.alias([size], undefined, full.offset + group.rank * size);
      const inPlace = shard.buffer === own.buffer && shard.offset === own.offset;
      if (!inPlace) kernels.copy({ in: own, out: shard }, stream);
      own.dispose();
    },
  };
};

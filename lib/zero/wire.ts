// Wires: change how gradients are summed over the ranks. The plain wire is the group of ranks
// itself.
import type { DType } from '../runtime/dtype.js';
import * as kernels from '../runtime/kernels.generated.js';
import type { Stream } from '../runtime/stream.js';
import { held, Tensor } from '../tensor/index.js';
import type { CollectivePlace, Collectives, Work } from './collectives.js';

/** Sums flat gradients over the ranks. A wire may change the input until the work is done. */
export type Wire = Pick<Collectives, 'allReduce' | 'reduceScatter'>;

/** Divides before the sum, against f16 overflow. Also for prescale_gradients. */
export class DividedWire implements Wire {
  constructor(
    private readonly inner: Wire,
    private readonly divisor: number,
  ) {}

  allReduce(full: Tensor, at: CollectivePlace): Work {
    this.divide(full, at.stream);
    return this.inner.allReduce(full, at);
  }

  reduceScatter(output: Tensor, full: Tensor, at: CollectivePlace): Work {
    this.divide(full, at.stream);
    return this.inner.reduceScatter(output, full, at);
  }

  private divide(full: Tensor, stream: Stream): void {
    const scale = 1 / this.divisor;
    kernels.scale({ in: full, out: full, scale, shift: 0, accumulate: false }, stream);
  }
}

/** Sums in `dtype` (communication_data_type) and rounds the sums back. */
export class CastWire implements Wire {
  constructor(
    private readonly inner: Wire,
    private readonly dtype: DType,
  ) {}

  allReduce(full: Tensor, at: CollectivePlace): Work {
    const wide = this.cast(full, at.stream);
    return this.roundAfter(this.inner.allReduce(wide, at), wide, [wide], full);
  }

  reduceScatter(output: Tensor, full: Tensor, at: CollectivePlace): Work {
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

/** Releases `tensor` in the order of `stream`, its last user. */
export function releaseOn(stream: Stream, tensor: Tensor): void {
  tensor.buffer.releaseOn(stream);
  tensor.release();
}

/** Every rank receives all sums and keeps its shard (reduce_scatter: false). */
export class AllReduceWire implements Wire {
  constructor(
    private readonly inner: Wire,
    private readonly group: Pick<Collectives, 'rank' | 'size'>,
  ) {}

  allReduce(full: Tensor, at: CollectivePlace): Work {
    return this.inner.allReduce(full, at);
  }

  reduceScatter(output: Tensor, full: Tensor, at: CollectivePlace): Work {
    const { rank, size } = this.group;
    const work = this.inner.allReduce(full, at);
    return {
      wait: (stream) => {
        work.wait(stream);
        const numel = full.numel / size;
        const ownTensor = full.alias([numel], undefined, full.offset + rank * numel);
        const inPlace = output.buffer === ownTensor.buffer && output.offset === ownTensor.offset;
        if (!inPlace) kernels.copy({ in: ownTensor, out: output }, stream);
        ownTensor.dispose();
      },
    };
  }
}

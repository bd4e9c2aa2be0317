// Reduces gradients in 4 bits (zero_quantized_gradients): an all-to-all of codes, summed in f32 by
// the owner of each shard. Source: ZeRO++'s qgZ.
import * as kernels from '../runtime/kernels.generated.js';
import { held, Tensor } from '../tensor/index.js';
import { BlockCodes, hasCodes, releaseOn } from './block-codes.js';
import type { At, Collectives, Work } from './collectives.js';
import type { Wire } from './wire.js';

const BITS = 4;

/** All-reduce uses `inner`. */
export class QuantizedWire implements Wire {
  readonly factor: number;

  constructor(
    private readonly inner: Wire,
    private readonly group: Collectives,
  ) {
    this.factor = inner.factor;
  }

  allReduce(full: Tensor, at: At): Work {
    return this.inner.allReduce(full, at);
  }

  reduceScatter(output: Tensor, full: Tensor, at: At): Work {
    const { group } = this;
    if (!hasCodes(full.dtype)) return this.inner.reduceScatter(output, full, at);
    const { numel } = output;
    const codes = new BlockCodes(BITS, numel);
    const sent = codes.allocate(group.size, full);
    const { buffer, dtype, shape, strides } = full;
    for (let rank = 0; rank < group.size; ++rank) {
      const shard = { buffer, dtype, shape, strides, offset: full.offset + rank * numel };
      codes.write(shard, sent, rank, at.stream);
    }
    const got = codes.allocate(group.size, full);
    const work = group.allToAll(got, sent, at);
    return {
      wait: (stream) => {
        work.wait(stream);
        releaseOn(stream, sent);
        const sum = held(() => Tensor.empty([numel], 'f32', output.device));
        const decoded = held(() => Tensor.emptyLike(sum));
        codes.read(got, 0, sum, stream);
        for (let rank = 1; rank < group.size; ++rank) {
          codes.read(got, rank, decoded, stream);
          kernels.binary({ a: sum, b: decoded, out: sum, op: 'add', accumulate: false }, stream);
        }
        kernels.copy({ in: sum, out: output }, stream);
        for (const one of [got, sum, decoded]) releaseOn(stream, one);
      },
    };
  }
}

/**
 * Reduces over replicas (mics_shard_size): first within the shard group, then over ranks with
 * the same shard. Source: Zhang et al. 2022 (MiCS).
 */
export class ReplicatedWire implements Wire {
  readonly factor: number;

  constructor(
    /** Over the shard group. */
    private readonly inner: Wire,
    /** Ranks with the same shard. */
    private readonly replicas: Collectives,
  ) {
    this.factor = inner.factor;
  }

  allReduce(full: Tensor, at: At): Work {
    return this.summed(this.inner.allReduce(full, at), full, at);
  }

  reduceScatter(output: Tensor, full: Tensor, at: At): Work {
    return this.summed(this.inner.reduceScatter(output, full, at), output, at);
  }

  private summed(inGroup: Work, sums: Tensor, at: At): Work {
    return {
      wait: (stream) => {
        inGroup.wait(stream);
        this.replicas.allReduce(sums, { ...at, stream }).wait(stream);
      },
    };
  }
}

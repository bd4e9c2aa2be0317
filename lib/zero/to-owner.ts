// Two ways of a unit's summed gradient to the owners of its shards.
import * as kernels from '../runtime/kernels.generated.js';
import type { Tensor } from '../tensor/index.js';
import type { At, Collectives, Work } from './collectives.js';
import type { Wire } from './wire.js';

/** Sums `full` [size * n] over the ranks; this rank's part goes to `shard` [n], which may be its place in `full`. */
export type ToOwner = (
  parts: { wire: Wire; group: Collectives },
  shard: Tensor,
  full: Tensor,
  at: At,
) => Work;

/** Each rank receives its shard alone (reduce_scatter, the default). */
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

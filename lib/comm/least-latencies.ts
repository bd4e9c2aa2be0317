// The minimum time of each logged collective over all ranks, to compute the time lost to
// stragglers.
import { required } from '../runtime/required.js';
import { scope, Tensor } from '../tensor/index.js';
import type { CommsLogger } from './comms-logger.js';
import type { ProcessGroup } from './process-group.js';

/**
 * Returns, for each call in logger.latencies(), the milliseconds of the rank that waited least. All
 * ranks of `group` call it, after the same collectives.
 */
export function leastLatencies(group: ProcessGroup, logger: CommsLogger): number[][] {
  const ownLatencies = logger.latencies();
  const { device } = group;
  // The exchange itself is not logged.
  group.logger = null;
  try {
    return scope(() => {
      const times = Tensor.from(ownLatencies.flat(), { dtype: 'f32', device });
      if (ownLatencies.length > 0) group.allReduce(times, { op: 'min' }).synchronize();
      const min = times.toArray();
      let at = 0;
      return ownLatencies.map((calls) => calls.map(() => required(min[at++])));
    });
  } finally {
    group.logger = logger;
  }
}

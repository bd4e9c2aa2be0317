// Selects the ranks that save and load an engine's checkpoints together.
import { type CheckpointWorld, soloWorld } from '../../checkpoint/index.js';
import type { Distributed } from '../../comm/index.js';
import { StoreWorld } from '../saving/store-world.js';

/**
 * Returns the ranks of the job, which exchange messages through its store. `hint`: the fix in the
 * error of a missing rank. Default: the hint for an engine's checkpoints.
 */
export function checkpointWorld(job: Distributed, hint?: string): CheckpointWorld {
  if (!job.store) return soloWorld;
  // Ranks build engines in the same order, so the names match.
  const name = job.nextName('checkpoint');
  const { rank, worldSize: size, store, timeout, world } = job;
  return new StoreWorld(store, { rank, size, name, timeout, check: () => world.check(), hint });
}

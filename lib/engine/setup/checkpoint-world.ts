// Which ranks save and load an engine's checkpoints together.
import { type CheckpointWorld, soloWorld } from '../../checkpoint/index.js';
import type { Distributed } from '../../comm/index.js';
import { StoreWorld } from '../saving/store-world.js';

/**
 * Those of the job, which meet at its store; one rank alone meets nobody. `hint` says what to do
 * where one does not come. Default: that of an engine's checkpoints.
 */
export function checkpointWorld(job: Distributed, hint?: string): CheckpointWorld {
  if (!job.store) return soloWorld;
  // Engines are built in the same order on every rank.
  const name = job.nextName('checkpoint');
  const { rank, worldSize: size, store, timeout, world } = job;
  return new StoreWorld(store, { rank, size, name, timeout, check: () => world.check(), hint });
}

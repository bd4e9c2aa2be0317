// Which ranks save and load an engine's checkpoints together.
import { type CheckpointWorld, soloWorld } from '../checkpoint/index.js';
import type { Distributed } from '../comm/index.js';
import { jobEnvironment } from '../runtime/addon.js';
import { StoreWorld } from './store-world.js';

/** Engines are built in the same order on every rank. */
let built = 0;

/** Minutes that the other ranks may take to join a save, or longer than this one to write their part. */
const DEFAULT_TIMEOUT = 10;

/** Those of the job, which meet at its store; one rank alone meets nobody. */
export function checkpointWorld(job: Distributed | null): CheckpointWorld {
  const name = `checkpoint/${built++}`;
  if (!job?.store) return soloWorld;
  const minutes = Number(jobEnvironment().timeout ?? DEFAULT_TIMEOUT);
  const { rank, worldSize: size, store } = job;
  return new StoreWorld(store, { rank, size, name, timeout: minutes * 60_000 });
}

// Which ranks save and load an engine's checkpoints together.
import { type CheckpointWorld, soloWorld } from '../checkpoint/index.js';
import { distributed } from '../comm/index.js';
import { DsError } from '../errors.js';
import { jobEnvironment } from '../runtime/addon.js';
import { StoreWorld } from './store-world.js';

/** Engines are built in the same order on every rank. */
let built = 0;

/** Minutes that the other ranks may take to join a save, or longer than this one to write their part. */
const DEFAULT_TIMEOUT = 10;

/** Those of the job, which meet at its store; one rank alone meets nobody. Throws DS_INTERNAL without a job. */
export function checkpointWorld(place: { rank: number; worldSize: number }): CheckpointWorld {
  const { rank, worldSize: size } = place;
  const name = `checkpoint/${built++}`;
  if (size === 1) return soloWorld;
  const store = distributed()?.store;
  const minutes = Number(jobEnvironment().timeout ?? DEFAULT_TIMEOUT);
  if (store) return new StoreWorld(store, { rank, size, name, timeout: minutes * 60_000 });
  throw new DsError({
    code: 'DS_INTERNAL',
    op: 'checkpoint',
    expected: `the store of a job of ${size} ranks`,
    got: 'none',
  });
}

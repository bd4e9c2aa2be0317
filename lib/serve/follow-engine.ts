// The work of a rank that shares a model with the rank of the HTTP server.
import { distributed } from '../comm/index.js';
import { type EngineOptions, openEngine } from './open-engine.js';

/** Computes the steps of rank 0 until the engine of rank 0 ends. Rejects as initInference(). */
export async function followEngine(folder: string, options: EngineOptions): Promise<void> {
  const engine = await openEngine(folder, options);
  await engine.follow();
  await engine.destroy();
  await leaveRanks();
}

/** Leaves the job of ranks that share a model. In a single process it does nothing. */
export async function leaveRanks(): Promise<void> {
  await distributed()?.destroy();
}

// Runs the ranks that share a model with the rank of the HTTP server.
import { distributed } from '../comm/index.js';
import { initServing } from '../inference/init-inference.js';
import { type EngineOptions, openEngine } from './open-engine.js';

/**
 * Follows the steps of rank 0 until its engine ends. The cache of all ranks is as large as the
 * smallest one, so a following rank sizes its own as rank 0 does. Rejects as initInference() does.
 */
export async function followEngine(folder: string, options: EngineOptions): Promise<void> {
  const engine = await openEngine(folder, options, initServing);
  await engine.follow();
  await engine.destroy();
  await leaveRanks();
}

/** Leaves the process group of the ranks. Does nothing in a single process. */
export async function leaveRanks(): Promise<void> {
  await distributed()?.destroy();
}

// Keeps whole weights on every rank beyond one call, for generation between updates.
import type { EngineCore } from '../engine-parts.js';
import { resync } from '../step/resync.js';
import { heldBy } from './owned-parameters.js';

/**
 * Gathers the sharded parameters of `engine` on every rank until the returned function is called.
 * All ranks call both. Meanwhile forwards need no other rank, and no step may run.
 */
export function holdWeights(engine: EngineCore): () => void {
  const shards = new Set([...heldBy(engine)].map(({ shard }) => shard));
  if (shards.size === 0) return () => {};
  resync(engine.parts);
  return engine.parts.hooks.hold([...shards]);
}

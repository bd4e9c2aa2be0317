// Fits an engine to the memory of its ranks: "auto" values, speculation, and the final check.
import type { Distributed } from '../../comm/index.js';
import type { Decisions } from '../engine-parts.js';
import { type Cuts, shardCount, shardSizes } from '../ranks.js';
import type { Given } from './clients.js';
import { requireMemory } from './memory-promise.js';
import { modelInfoPath } from './model-info.js';
import { choosePlanned, chooseUpdates, type Measured, measured } from './planned-zero.js';

/** Counts the model before its layers are divided; null if neither plan nor tuning needs it. */
export function wholeModel({ module, config, job, planned }: Given): Measured | null {
  return planned || modelInfoPath(config) !== null ? measured(module, job) : null;
}

/**
 * Returns `asked` with its final configuration, equal on every rank. `whole`: see wholeModel().
 * Throws DS_OUT_OF_MEMORY on every rank before any allocation, DS_COMM.
 */
export async function fitMemory(
  { job, planned }: { job: Distributed; planned: Given['planned'] },
  asked: Decisions,
  { whole, cuts }: { whole: Measured | null; cuts: Cuts },
): Promise<Decisions> {
  const count = (): Measured => (cuts.layers && whole ? whole : measured(asked.module, job));
  const config = planned ? await choosePlanned(job, asked, planned, count()) : asked.config;
  // The check counts whole models, and a pipeline divides its model later.
  if (asked.plan) return { ...asked, config };
  const chosen = { ...asked, config };
  const updated = { ...chosen, config: await chooseUpdates(job, chosen, count) };
  const shards = shardCount(job.mesh, cuts, shardSizes(config));
  return { ...updated, config: await requireMemory(job, updated, shards) };
}

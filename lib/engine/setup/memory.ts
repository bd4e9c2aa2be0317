// Fits an engine to the memory of its ranks: "auto" values, speculation, and the final check. The
// first run of `ds --autotuning` describes the model for the plan.
import type { ResolvedConfig } from '../../../types/config.js';
import type { Distributed } from '../../comm/index.js';
import { factsOf, type ModelInfo, writeResult } from '../../plan/index.js';
import { clusterOf, roomOf, standingOf } from '../../plan/room.js';
import {
  type Counted,
  claimOf,
  needsText,
  refusal,
  type Shortage,
  shortageOfSpeculation,
  shortages,
} from '../../plan/shortages.js';
import { notice } from '../../runtime/notice.js';
import type { Decisions } from '../engine-parts.js';
import { type Cuts, shardCount, shardSizes } from '../ranks.js';
import type { Given } from './clients.js';
import {
  choosePlanned,
  chooseUpdates,
  jobMesh,
  type Measured,
  measured,
  trainedBy,
  withOffload,
} from './planned-zero.js';
import { exchanged } from './setup-world.js';

/** Returns the file that the first run of autotuning writes, or null for other runs. */
export function modelInfoPath({ autotuning }: ResolvedConfig): string | null {
  return autotuning.enabled && autotuning.model_info?.profile ? autotuning.model_info_path : null;
}

/** Counts the model before its layers are divided; null if neither plan nor tuning needs it. */
export function wholeModel({ module, config, job, planned }: Given): Measured | null {
  return planned || modelInfoPath(config) !== null ? measured(module, job) : null;
}

/** In that run, rank 0 writes the model, the job and the memory of all ranks. Throws DS_IO. */
export async function describeModel(
  job: Distributed,
  { module, config, optimizer }: Decisions,
  model: Measured | null,
): Promise<void> {
  const file = modelInfoPath(config);
  if (file === null || model === null) return;
  const { sizes: whole, isKnown, checkpointing, isCut } = model;
  const { device } = job.world;
  const own = standingOf(module, config, device);
  const standings = await exchanged(job, own);
  if (job.rank !== 0) return;
  const sizes = trainedBy(optimizer, whole);
  const info: ModelInfo = {
    num_params: sizes.parameters,
    trainable_num_params: sizes.trained.count,
    activation_mem_per_gpu: null,
    sequence_length: null,
    sizes,
    knowsActivations: isKnown,
    checkpointing,
    ...factsOf(optimizer),
    isHost: device.kind === 'cpu',
    deviceName: device.name,
    card: own.card,
    room: roomOf(standings),
    cluster: clusterOf(standings),
    mesh: jobMesh(job, isCut),
  };
  writeResult(file, info);
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

/**
 * Throws DS_OUT_OF_MEMORY on every rank if weights, gradients and state exceed the memory. A
 * virtual machine may receive memory as it is used, so a shortage of free memory there is only a
 * notice. Returns the configuration; without memory for open speculation, speculation is off.
 */
export async function requireMemory(
  job: Distributed,
  given: Omit<Counted, 'shards'>,
  shards: number,
): Promise<ResolvedConfig> {
  const { config } = given;
  const claims = await exchanged(job, claimOf({ ...given, shards }, job.world.device));
  const found = shortages(claims);
  const certain = found.filter(({ isCertain }) => isCertain);
  if (certain.length > 0) throw refusal(certain, config);
  const tooMuch = shortageOfSpeculation(claims);
  if (job.rank === 0) {
    if (tooMuch) notice(waitingText(tooMuch));
    for (const shortage of found) {
      const { message } = refusal([shortage], config);
      notice(`${message} A virtual machine may receive more memory, so training continues.`);
    }
  }
  return tooMuch ? withOffload(config, { super_offload: false }) : config;
}

function waitingText({ of, parts, there }: Shortage): string {
  return (
    `initialize: updates wait until backward has ended ("super_offload": false). Speculation needs ` +
    `${needsText(of, parts)}, and there is ${there}. "super_offload": true enables them anyway.`
  );
}

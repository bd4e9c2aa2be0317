// The first run of `ds --autotuning`: writes the model, job and memory sizes for the plan before
// any allocation.

import type { ResolvedConfig } from '../../../types/config.js';
import type { Distributed } from '../../comm/index.js';
import { AXIS } from '../../comm/mesh-shape.js';
import { factsOf, type ModelInfo, writeResult } from '../../plan/index.js';
import type { Decisions } from '../engine-parts.js';
import { clusterOf, roomOf, standingOf } from './planned-room.js';
import { type Measured, trainedBy } from './planned-zero.js';
import { exchanged } from './setup-world.js';

/** Returns the file that this run writes, or null for other runs. */
export function modelInfoPath({ autotuning }: ResolvedConfig): string | null {
  return autotuning.enabled && autotuning.model_info?.profile ? autotuning.model_info_path : null;
}

/** In such a run, rank 0 writes the file from the data of all ranks. Throws DS_IO, DS_COMM. */
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
    mesh: {
      data: job.mesh.size(AXIS.data),
      tokens: job.mesh.size(AXIS.sequence),
      layers: isCut ? 1 : job.mesh.size(AXIS.tensor),
      stages: job.mesh.size(AXIS.pipeline),
    },
  };
  writeResult(file, info);
}

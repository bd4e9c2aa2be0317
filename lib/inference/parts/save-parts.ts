// Writes a sharded model for save_mp_checkpoint_path: one file of common tensors, one per rank, and
// a JSON list.
import { join } from 'node:path';
import { replaceFile, requireFree, type TensorSource, writeAlone } from '../../checkpoint/index.js';
import { DsError } from '../../errors.js';
import type { CausalLM } from '../../models/index.js';
import type { Parameter } from '../../nn/parameter.js';
import { hasPackedParts } from '../../parallel/quantized-layers.js';
import { cpu } from '../../runtime/device.js';
import { makeFolderNow } from '../../runtime/make-folder.js';
import { onDisk } from '../../runtime/on-disk.js';
import { held, noGrad, scope, Tensor, to } from '../../tensor/index.js';
import type { ModelRanks } from '../ranks/open-ranks.js';
import { PARTS_LIST } from './parts-list.js';

const WHOLE = 'non_tp.safetensors';
const partFile = (rank: number): string => `tp_${String(rank).padStart(2, '0')}.safetensors`;

/**
 * Saves `model` into a new or empty folder. initInference(folder, { checkpoint }) loads it on the
 * same number of ranks. The JSON list is written last: a folder with a list is complete.
 * Collective: all ranks call it, and all reject if one fails. Rejects with DS_ARGUMENT, DS_IO, and
 * DS_CONFIG for packed parts.
 */
export async function saveParts(
  model: CausalLM,
  folder: string,
  ranks: ModelRanks | null,
): Promise<void> {
  const { rank = 0, size = 1 } = ranks?.host ?? {};
  const isFirst = rank === 0;
  if (hasPackedParts(model)) throw packedError();
  const parameters = [...model.namedParameters()];
  const isCut = ([, parameter]: [string, Parameter]): boolean => parameter.isCut;
  await runOnAll(ranks, async () => {
    if (!isFirst) return;
    await requireFree(folder);
    const target = {
      op: `save_mp_checkpoint_path ${folder}`,
      expected: 'a folder that can be made',
    };
    onDisk(target, () => makeFolderNow(folder));
  });
  await runOnAll(ranks, async () => {
    if (size > 1)
      await writeAlone(join(folder, partFile(rank)), toSources(parameters.filter(isCut)));
    if (!isFirst) return;
    const common = parameters.filter((item) => !isCut(item));
    await writeAlone(join(folder, WHOLE), toSources(common));
  });
  await runOnAll(ranks, async () => {
    if (!isFirst) return;
    const { config, generation } = model.describe();
    const write = (name: string, value: unknown): Promise<void> =>
      replaceFile(join(folder, name), `${JSON.stringify(value, null, 2)}\n`);
    await write('config.json', config);
    if (generation) await write('generation_config.json', generation);
    const tp = size > 1 ? Array.from({ length: size }, (_, other) => partFile(other)) : [];
    await write(PARTS_LIST, {
      type: 'ds_model',
      version: 1,
      parallelization: 'tp',
      tp_size: size,
      checkpoints: { non_tp: [WHOLE], tp },
    });
  });
}

function toSources(parameters: readonly [string, Parameter][]): TensorSource[] {
  return parameters.map(([name, parameter]) => ({
    name,
    dtype: parameter.dtype,
    shape: parameter.shape,
    values: async () => held(() => noGrad(() => scope(() => to(parameter, cpu()).clone()))),
  }));
}

/** Runs `act` and waits for all ranks. If one rank fails, all throw. */
async function runOnAll(ranks: ModelRanks | null, act: () => Promise<void>): Promise<void> {
  let failure: { error: unknown } | null = null;
  try {
    await act();
  } catch (error) {
    failure = { error };
  }
  if (ranks) {
    const failed = held(() => Tensor.from(Int32Array.of(failure ? 1 : 0)));
    await ranks.host.allReduce(failed, { op: 'max', purpose: 'save_mp_checkpoint_path' }).promise;
    const [any] = failed.toArray();
    failed.release();
    if (any && !failure) throw otherRankError();
  }
  if (failure) throw failure.error;
}

/** The parameters of packed parts do not record the region of the whole tensor. */
function packedError(): DsError {
  return new DsError({
    code: 'DS_CONFIG',
    op: 'initInference save_mp_checkpoint_path',
    expected: 'no folder for quantized layers that are sharded',
    got: 'a folder',
    hint: 'Load the original folder instead: each rank reads its part of it.',
  });
}

function otherRankError(): DsError {
  return new DsError({
    code: 'DS_IO',
    op: 'initInference save_mp_checkpoint_path',
    expected: 'a folder that all ranks can write to',
    got: 'a failed write on another rank, which reports the cause',
  });
}

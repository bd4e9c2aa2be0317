// Compression errors of 1-bit optimizers in checkpoints. Each rank has its own errors.

import type { Checkpoint, Shard, TensorInfo } from '../../checkpoint/index.js';
import { canExchange } from '../../optim/exchange.js';
import type { Box } from '../../runtime/box.js';
import * as kernels from '../../runtime/kernels.generated.js';
import { required } from '../../runtime/required.js';
import { held, Tensor } from '../../tensor/index.js';
import type { LayoutEntry } from '../../zero/layout.js';
import type { RankError } from '../../zero/state/strategies.js';
import type { EngineCore } from '../engine-parts.js';
import { divideByBox, entriesOf, stateKey } from './engine-shards.js';

const NAMES: readonly string[] = ['worker_error', 'server_error'];

/**
 * Returns whether a state of this name is a compression error of a rank, not state of the
 * optimizer.
 */
export const isRankError = (name: string): boolean => NAMES.includes(name);

const rowOf = (rank: number, { numel }: LayoutEntry): Box => ({
  offset: [rank, 0],
  shape: [1, numel],
});

/**
 * Returns shape and dtype by name for the errors of all ranks: "worker_error" is [ranks, elements],
 * "server_error" has the parameter's shape.
 */
export function errorCatalog(engine: EngineCore): Map<string, TensorInfo> {
  const { optimizer, ranks } = engine.parts;
  const { size } = ranks.dataGroup;
  const catalog = new Map<string, TensorInfo>();
  if (!canExchange(optimizer) || size === 1) return catalog;
  for (const { name, numel, region } of entriesOf(engine)) {
    if (numel === 0) continue;
    catalog.set(stateKey(name, 'worker_error'), { dtype: 'f32', shape: [size, numel] });
    catalog.set(stateKey(name, 'server_error'), { dtype: 'f32', shape: region.whole });
  }
  return catalog;
}

/** Returns the errors of this rank. The caller releases the tensors. */
export function errorShards({ parts }: EngineCore): Shard[] {
  const { dataGroup, isReplica } = parts.ranks;
  return parts.state.rankErrors().flatMap((error): Shard[] => {
    const { entry, name, from, tensor } = error;
    const key = stateKey(entry.name, name);
    if (isReplica || entry.numel === 0) {
      tensor.release();
      return [];
    }
    if (name === 'worker_error') {
      const shape = [dataGroup.size, entry.numel];
      return [{ name: key, shape, box: rowOf(dataGroup.rank, entry), from, tensor }];
    }
    const { whole } = entry.region;
    return divideByBox(entry.region, from, tensor).map((part) => {
      return { name: key, shape: whole, ...part };
    });
  });
}

/**
 * Reads the errors of this rank. Missing errors become zero, and so do all errors without
 * `isLoaded`. If the number of ranks has changed, each rank gets the mean of the saved worker
 * errors. The next average then corrects the same total error.
 */
export async function readErrors(
  engine: EngineCore,
  checkpoint: Checkpoint,
  isLoaded: boolean,
): Promise<void> {
  for (const error of engine.parts.state.rankErrors()) {
    try {
      kernels.fill({ out: error.tensor, value: 0 });
      const info = checkpoint.tensors('optimizer').get(stateKey(error.entry.name, error.name));
      engine.device.compute.synchronize();
      if (!isLoaded || !info || error.entry.numel === 0) continue;
      if (error.name === 'server_error') await readServerError(checkpoint, error);
      else
        await readWorkerError(
          checkpoint,
          error,
          required(info.shape[0]),
          engine.parts.ranks.dataGroup,
        );
    } finally {
      error.tensor.release();
    }
  }
}

async function readServerError(
  checkpoint: Checkpoint,
  { entry, from, tensor }: RankError,
): Promise<void> {
  const key = stateKey(entry.name, 'server_error');
  for (const part of divideByBox(entry.region, from, tensor.retain())) {
    await checkpoint.read('optimizer', key, part, part.tensor);
    part.tensor.release();
  }
}

async function readWorkerError(
  checkpoint: Checkpoint,
  { entry, tensor }: RankError,
  saved: number,
  { rank, size }: { rank: number; size: number },
): Promise<void> {
  const key = stateKey(entry.name, 'worker_error');
  const read = (row: number, into: Tensor): Promise<void> =>
    checkpoint.read('optimizer', key, { box: rowOf(row, entry), from: 0 }, into);
  if (saved === size) return read(rank, tensor);
  const item = held(() => Tensor.empty([entry.numel], 'f32', tensor.device));
  for (let row = 0; row < saved; row++) {
    await read(row, item);
    kernels.scale({ in: item, out: tensor, scale: 1 / saved, shift: 0, accumulate: true });
    tensor.device.compute.synchronize();
  }
  item.release();
}

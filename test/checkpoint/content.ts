// Checkpoint contents for tests: whole tensors of one rank, and their values read back.
import { writeFileSync } from 'node:fs';

import {
  Checkpoint,
  type CheckpointContent,
  type Shard,
  saveCheckpoint,
  soloWorld,
  type TensorInfo,
} from '../../lib/checkpoint/index.js';
import { cpu } from '../../lib/runtime/device.js';
import { Tensor } from '../../lib/tensor/tensor.js';
import type { JsonObject } from '../../types/json.js';

export function infos(shards: readonly Shard[]): Map<string, TensorInfo> {
  return new Map(shards.map(({ name, shape, tensor }) => [name, { dtype: tensor.dtype, shape }]));
}

/** The content of a checkpoint with one rank. */
export function contentOf(
  model: readonly Shard[],
  optimizer: readonly Shard[],
  state: JsonObject = {},
): CheckpointContent {
  const catalog = { model: infos(model), optimizer: infos(optimizer) };
  const rest = {
    part: { data: 0, model: 0 },
    modelIsSharded: false,
    rankState: {},
    description: null,
  };
  return { model, optimizer, catalog, state, ...rest };
}

/** "w" [10, 100] with fill, fill + 1, ...; equal master weights and moment. */
export function content(fill: number, state: JsonObject = { n: fill }): CheckpointContent {
  const values = Float32Array.from({ length: 1000 }, (_, i) => fill + i);
  const shard = (name: string): Shard => {
    const shape = [10, 100];
    return { name, shape, tensor: Tensor.from(values, { shape }) };
  };
  return contentOf([shard('w')], [shard('w.fp32'), shard('w.exp_avg')], state);
}

export interface SaveWishes {
  saveLatest?: boolean;
  keepLast?: number;
}

/** Saves with one rank. */
export function save(
  dir: string,
  tag: string,
  what: CheckpointContent,
  { saveLatest = true, keepLast }: SaveWishes = {},
): Promise<string> {
  return saveCheckpoint({ dir, tag, saveLatest, keepLast }, what, soloWorld);
}

/** Every tensor of a checkpoint by name. */
export async function valuesOf(from: string, tag?: string): Promise<Record<string, number[]>> {
  const checkpoint = await Checkpoint.open(from, tag);
  try {
    const out: Record<string, number[]> = {};
    for (const section of ['model', 'optimizer'] as const) {
      for (const [name, { shape, dtype }] of checkpoint.tensors(section)) {
        const into = Tensor.empty(shape, dtype, cpu());
        await checkpoint.readInto(section, name, into);
        out[name] = into.toArray();
        into.dispose();
      }
    }
    return out;
  } finally {
    await checkpoint.close();
  }
}

export function writeJson(path: string, value: JsonObject): void {
  writeFileSync(path, JSON.stringify(value));
}

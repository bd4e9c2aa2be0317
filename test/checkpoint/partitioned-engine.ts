// A trained tiny engine seen as one rank of a stage: real units, partitions and state, without
// collectives.

import { keptState } from '../../lib/engine/saving/engine-shards.js';
import { type Engine, initialize, seed } from '../../lib/index.js';
import { cpu } from '../../lib/runtime/device.js';
import { sliceFlat } from '../../lib/tensor/flat.js';
import type { Tensor } from '../../lib/tensor/index.js';
import type { Range } from '../../lib/zero/layout.js';
import type { OptimizerState } from '../../lib/zero/optimizer-state.js';
import { MemoryStore, Partition } from '../../lib/zero/partition.js';
import type { ZeroStages } from '../../lib/zero/stage.js';
import type { LentState } from '../../lib/zero/state/memory.js';
import type { Unit } from '../../lib/zero/unit.js';
import { tinyConfig, tinyModel, trainTiny } from '../e2e/tiny-training.js';

export interface Place {
  stage: number;
  rank: number;
  size: number;
}

/** An engine of one rank in mixed precision, after `steps` steps, with a frozen parameter. */
export async function tinyEngine(from: number, steps: number): Promise<Engine> {
  seed(from);
  const model = tinyModel({ dropout: 0.1 });
  for (const [name, parameter] of model.namedParameters()) {
    if (/wpe/.test(name)) parameter.requireGrad(false);
  }
  const config = tinyConfig({ precision: 'bf16', offload: false });
  const { engine } = await initialize({ model, config, device: cpu() });
  trainTiny(engine, 0, steps);
  engine.synchronize();
  return engine;
}

/**
 * Presents the engine as rank `place.rank` of `place.size`, with its part of the units, split
 * anywhere.
 */
export function partitionEngine(engine: Engine, place: Place): Engine {
  const { parts } = engine;
  const fullEntries = new Map(
    parts.stage.partitions.map((partition) => [partition.unit, partition]),
  );
  const partitions = Array.from(fullEntries.keys(), (unit) => cut(unit, place));
  const stage = {
    shardsWeights: place.stage === 3,
    partitions,
    frozen: [],
    acquire() {},
    publish() {},
  } as unknown as ZeroStages;
  const state = {
    lend(partition: Partition, fragment, name: string): LentState {
      const offset = fragment.offset + partition.range.offset;
      return parts.state.lend(
        fullEntries.get(partition.unit) as Partition,
        { ...fragment, offset },
        name,
      );
    },
    awaitWeights() {},
    lendsCopies: () => false,
    synchronize() {},
    rankErrors: () => [],
    refresh({ unit }: Partition) {
      parts.state.refresh(fullEntries.get(unit) as Partition);
    },
  } as Partial<OptimizerState> as OptimizerState;
  const group = { rank: place.rank, size: place.size };
  const ranks = { ...parts.ranks, world: group, dataGroup: group, shardGroup: group };
  return Object.create(engine, {
    parts: { value: { ...parts, ranks, stage, state } },
  }) as Engine;
}

function cut(unit: Unit, { stage, rank, size }: Place): Partition {
  const { numel } = unit.layout;
  const border = (n: number): number => Math.floor((numel * n) / size);
  const share: Range = { offset: border(rank), numel: border(rank + 1) - border(rank) };
  if (stage > 0) return new Partition(unit, share, new MemoryStore(sliceFlat(unit.weights, share)));
  const fullMemoryStore = new MemoryStore(unit.weights.retain());
  return new Partition(unit, { offset: 0, numel }, fullMemoryStore, share);
}

/**
 * Every fragment of state that the rank holds, and every weight and buffer, as raw bits by name.
 */
export function stateBits(engine: Engine): Record<string, string> {
  const { stage, state: kept } = engine.parts;
  const bits: Record<string, string> = {};
  for (const partition of stage.partitions) {
    for (const fragment of partition.fragments) {
      for (const state of Object.keys(keptState(engine, fragment.entry))) {
        const tensor = kept.lend(partition, fragment, state).tensor;
        bits[`${fragment.entry.name} ${state} from ${fragment.from}`] = rawBits(tensor);
        tensor.release();
      }
    }
  }
  for (const [name, tensor] of engine.module.namedParameters()) {
    if (!tensor.requiresGrad || engine.parts.ranks.dataGroup.size === 1)
      bits[name] = rawBits(tensor);
  }
  for (const [name, tensor] of engine.module.namedBuffers()) bits[name] = rawBits(tensor);
  return bits;
}

function rawBits(tensor: Tensor): string {
  const raw = tensor.toRaw();
  return Buffer.from(raw.buffer, raw.byteOffset, raw.byteLength).toString('base64');
}

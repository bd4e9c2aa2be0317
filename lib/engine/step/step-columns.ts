// The columns of partition sums in the exchange of the norm.
import { AXIS } from '../../comm/mesh-shape.js';
import type { Pipeline } from '../../pipe/pipeline.js';
import { held, Tensor, zeros } from '../../tensor/index.js';
import type { Range } from '../../zero/layout.js';
import type { Partition } from '../../zero/shard.js';
import { normRanksAt, type Ranks } from '../ranks.js';

/** Columns of a row. Each rank fills its own columns. */
export interface Columns {
  /** Number of columns over all stages. */
  readonly count: number;
  /** Columns of this rank's partitions, in their order. */
  readonly ownColumns: readonly number[];
  /** The ranks that fill each range of columns: the data ranks and tensor ranks of a stage. */
  readonly runs: readonly (Range & { readonly ranks: readonly number[] })[];
}

/** Returns the columns of ranks that hold all partitions. */
function allColumns(partitions: number, ranks: readonly number[]): Columns {
  const ownColumns = Array.from({ length: partitions }, (_, i) => i);
  return { count: partitions, ownColumns, runs: [{ offset: 0, numel: partitions, ranks }] };
}

/**
 * Returns the columns of a pipeline. `owners`: the stage of each column. `ranks`: the counting
 * ranks of each stage. `rank`: this stage.
 */
export function assignStageColumns(
  owners: readonly number[],
  ranks: readonly (readonly number[])[],
  rank: number,
): Columns {
  const runs: { offset: number; numel: number; owner: number }[] = [];
  owners.forEach((owner, offset) => {
    const last = runs.at(-1);
    if (last?.owner === owner) last.numel++;
    else runs.push({ offset, numel: 1, owner });
  });
  return {
    count: owners.length,
    ownColumns: owners.flatMap((owner, column) => (owner === rank ? [column] : [])),
    runs: runs.map(({ owner, ...range }) => ({ ...range, ranks: ranks[owner] ?? [] })),
  };
}

/** Returns the columns of partition sums in the exchange of the norm, in layer order. */
export function assignColumns(
  pipeline: Pipeline | null,
  partitions: readonly Partition[],
  { world, normRanks, tensorGroup, mesh }: Ranks,
): Columns {
  if (!pipeline || pipeline.place.ranks === 1) return allColumns(partitions.length, normRanks);
  const { layers, place } = pipeline;
  const counts = held(() => zeros([world.size, layers.length], { device: world.device }));
  const ownCounts = new Array<number>(layers.length).fill(0);
  const own = partitions.map((partition) => firstLayer(pipeline, partition));
  for (const layer of own) ownCounts[layer] = (ownCounts[layer] ?? 0) + 1;
  const row = held(() => Tensor.from(ownCounts, { device: world.device }));
  world.allGather(counts, row, { purpose: 'units of stages' }).wait();
  const all = counts.toArray();
  counts.release();
  row.release();
  const ofStage = mesh.shape.ranksAlong(world.rank, AXIS.pipeline);
  const owners = layers.flatMap((_, layer) =>
    ofStage.flatMap((rank, stage) =>
      new Array<number>(all[rank * layers.length + layer] ?? 0).fill(stage),
    ),
  );
  const countingRanks = ofStage.map((rank) =>
    normRanksAt(mesh, rank, { layers: tensorGroup !== null }),
  );
  return assignStageColumns(owners, countingRanks, place.rank);
}

/** Returns the first layer of this rank that reads the partition's parameters. */
function firstLayer({ layers, starts, ownStages }: Pipeline, { unit }: Partition): number {
  const [first] = unit.parameters;
  const own = ownStages.flatMap((stage) => {
    const [from = 0, to = 0] = starts.slice(stage, stage + 2);
    return Array.from({ length: to - from }, (_, i) => from + i);
  });
  const reads = (layer: number): boolean =>
    layers[layer]?.modules.some((module) =>
      module.parameters().some((parameter) => parameter === first?.parameter),
    ) ?? false;
  return own.find(reads) ?? own[0] ?? 0;
}

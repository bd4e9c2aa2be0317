// Columns of the rows that ranks exchange: the places of the partitions' sums of squares.
import type { Range } from '../../zero/layout.js';

/** Columns of a row. Each rank fills its own columns. */
export interface Columns {
  /** Number of columns over all stages. */
  readonly count: number;
  /** Columns of this rank's partitions, in their order. */
  readonly own: readonly number[];
  /** The ranks that fill each range of columns: the data ranks and tensor ranks of a stage. */
  readonly runs: readonly (Range & { readonly ranks: readonly number[] })[];
}

/** Returns the columns of ranks that hold all partitions. */
export function allColumns(partitions: number, ranks: readonly number[]): Columns {
  const own = Array.from({ length: partitions }, (_, i) => i);
  return { count: partitions, own, runs: [{ offset: 0, numel: partitions, ranks }] };
}

/**
 * Returns the columns of a pipeline. `owners`: the stage of each column. `ranks`: the counting
 * ranks of each stage. `rank`: this stage.
 */
export function columnsOfStages(
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
    own: owners.flatMap((owner, column) => (owner === rank ? [column] : [])),
    runs: runs.map(({ owner, ...range }) => ({ ...range, ranks: ranks[owner] ?? [] })),
  };
}

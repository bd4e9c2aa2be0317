// Where the partitions' sums of squares lie in the rows that ranks tell each other, in the order of
// one rank's.
import type { Range } from '../../zero/layout.js';

/** Columns of a row, of which each rank fills its own. */
export interface Columns {
  /** Of all stages. */
  readonly count: number;
  /** Of this rank's partitions, in their order. */
  readonly own: readonly number[];
  /**
   * Which ranks fill which columns: the data ranks of a stage, and those that have parts of its
   * layers.
   */
  readonly runs: readonly (Range & { readonly ranks: readonly number[] })[];
}

/** Those of ranks that have all partitions. */
export function allColumns(partitions: number, ranks: readonly number[]): Columns {
  const own = Array.from({ length: partitions }, (_, i) => i);
  return { count: partitions, own, runs: [{ offset: 0, numel: partitions, ranks }] };
}

/**
 * Those of a pipeline, column by column: `owners` says which stage's each is, `ranks` are those
 * that count for each stage, and `rank` is this stage.
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

// Whose ranks: every place of an engine that counts, compares or names ranks says which of these it
// means.
import type { Axis, Distributed, Mesh, ProcessGroup } from '../comm/index.js';

/** Ranks that differ here have other samples of a batch, and share gradients and state out. */
export const DATA: readonly Axis[] = ['dp'];

/** Ranks that differ here alone do and hold the same: nothing splits sequences or tensors yet. */
export const COPIES: readonly Axis[] = ['pp', 'sp', 'tp'];

/** The same where pp has the stages of a pipeline. */
export const COPIES_OF_STAGES: readonly Axis[] = ['sp', 'tp'];

/**
 * The axes along which parts of a model may lie: with the data rank, a rank's place among those
 * that save.
 */
export const MODEL: readonly Axis[] = ['pp', 'sp', 'tp'];

/** A rank's groups in the job that trains an engine. */
export interface Ranks {
  /**
   * All of them: who prints, whose wish to stop counts, who saves and loads checkpoints together.
   */
  readonly world: ProcessGroup;
  /**
   * Those that share out a batch: its sizes, samplers, dropout, mean gradients and losses, shards.
   */
  readonly data: ProcessGroup;
  /** Those with the same parameters, which all start with the values of the first. */
  readonly alike: ProcessGroup;
  readonly mesh: Mesh;
  /** The axes along which ranks do and hold the same. */
  readonly copies: readonly Axis[];
  /** Those whose losses are the batch's: the data ranks, of the last stage of a pipeline. */
  readonly tellers: readonly number[];
  /** This process among those of its machine. */
  readonly localRank: number;
  /** Whether a lower rank has all that this one has, and saves it. */
  readonly isCopy: boolean;
}

/**
 * The groups of this rank; those that are missing are opened, which every rank of the job does at
 * the same time. With `stages`, pp has the stages of a pipeline, and else copies.
 */
export async function ranksOf(
  { world, mesh, localRank }: Distributed,
  { stages = false } = {},
): Promise<Ranks> {
  const copies = stages ? COPIES_OF_STAGES : COPIES;
  const data = await mesh.axis(...DATA);
  const alike = await mesh.axis(...DATA, ...copies);
  const isCopy = mesh.place(...copies) > 0;
  return { world, data, alike, mesh, copies, localRank, isCopy, tellers: tellersOf(mesh, stages) };
}

function tellersOf({ shape, coordinates }: Mesh, stages: boolean): readonly number[] {
  const pp = stages ? shape.sizes.pp - 1 : coordinates.pp;
  return shape.ranksAlong(shape.rankAt({ ...coordinates, pp }), ...DATA);
}

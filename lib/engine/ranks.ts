// Whose ranks: every place of an engine that counts, compares or names ranks says which of these it means.
import type { Axis, Distributed, Mesh, ProcessGroup } from '../comm/index.js';

/** Ranks that differ here have other samples of a batch, and share gradients and state out. */
export const DATA: readonly Axis[] = ['dp'];

/** Ranks that differ here alone do and hold the same: nothing splits layers, sequences or tensors yet. */
export const COPIES: readonly Axis[] = ['pp', 'sp', 'tp'];

/** A rank's groups in the job that trains an engine. */
export interface Ranks {
  /** All of them: who prints, whose wish to stop counts, who saves and loads checkpoints together. */
  readonly world: ProcessGroup;
  /** Those that share out a batch: its sizes, samplers, dropout, mean gradients and losses, shards. */
  readonly data: ProcessGroup;
  /** Those with the same parameters, which all start with the values of the first. */
  readonly alike: ProcessGroup;
  readonly mesh: Mesh;
  /** This process among those of its machine. */
  readonly localRank: number;
  /** Whether a lower rank has all that this one has, and saves it. */
  readonly isCopy: boolean;
}

/** The groups of this rank; those that are missing are opened, which every rank of the job does at the same time. */
export async function ranksOf({ world, mesh, localRank }: Distributed): Promise<Ranks> {
  const data = await mesh.axis(...DATA);
  const alike = await mesh.axis(...DATA, ...COPIES);
  return { world, data, alike, mesh, localRank, isCopy: mesh.place(...COPIES) > 0 };
}

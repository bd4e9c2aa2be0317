// Whose ranks: every place of an engine that counts, compares or names ranks says which of these it
// means.
import type { Axis, Distributed, Mesh, ProcessGroup } from '../comm/index.js';
import type { Parameter } from '../nn/parameter.js';
import { isPart } from '../runtime/box.js';

/** Ranks that differ here have other samples of a batch, and share gradients and state out. */
export const DATA: readonly Axis[] = ['dp'];

/**
 * The axes along which parts of a model may lie: with the data rank, a rank's place among those
 * that save. Ranks that differ here alone do and hold the same unless the model is cut there.
 */
export const MODEL: readonly Axis[] = ['pp', 'sp', 'tp'];

/** Along which of the axes a model is cut. */
export interface Cuts {
  /** Axis pp has the stages of a pipeline. */
  stages?: boolean;
  /** Axis tp has parts of its layers. */
  layers?: boolean;
}

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
  /** Those that have the parts of each layer; null where layers are whole. */
  readonly layers: ProcessGroup | null;
  readonly mesh: Mesh;
  /** The axes along which ranks do and hold the same. */
  readonly copies: readonly Axis[];
  /** Those whose losses are the batch's: the data ranks, of the last stage of a pipeline. */
  readonly tellers: readonly number[];
  /**
   * Those whose sums of squares make up the norm: of a pipeline, of each stage those like these.
   */
  readonly counting: readonly number[];
  /** This process among those of its machine. */
  readonly localRank: number;
  /** Whether a lower rank has all that this one has, and saves it. */
  readonly isCopy: boolean;
  /**
   * Whether this rank counts a parameter in norms, and saves it: of those that share layers out one
   * does for what several of them have.
   */
  answersFor(parameter: Parameter): boolean;
}

/**
 * The groups of this rank; those that are missing are opened, which every rank of the job does at
 * the same time.
 */
export async function ranksOf(job: Distributed, cuts: Cuts = {}): Promise<Ranks> {
  const { world, mesh, localRank } = job;
  const { stages = false, layers: isCut = false } = cuts;
  const copies = MODEL.filter((axis) => !(stages && axis === 'pp') && !(isCut && axis === 'tp'));
  const data = await mesh.axis(...DATA);
  const alike = await mesh.axis(...DATA, ...copies);
  const layers = isCut ? await mesh.axis('tp') : null;
  const isFirst = (layers?.rank ?? 0) === 0;
  return {
    ...{ world, data, alike, layers, mesh, copies, localRank },
    isCopy: mesh.place(...copies) > 0,
    tellers: tellersOf(mesh, { stages, layers: isCut }),
    counting: countingAt(mesh, world.rank, isCut),
    answersFor: ({ region, isReplica }) => !isReplica && (isFirst || isPart(region)),
  };
}

function tellersOf({ shape, coordinates }: Mesh, { stages, layers }: Cuts): readonly number[] {
  const pp = stages ? shape.sizes.pp - 1 : coordinates.pp;
  const tp = layers ? 0 : coordinates.tp;
  return shape.ranksAlong(shape.rankAt({ ...coordinates, pp, tp }), ...DATA);
}

/** The ranks that count what `rank` has a part of, itself among them. */
export function countingAt({ shape }: Mesh, rank: number, isCut: boolean): number[] {
  return shape.ranksAlong(rank, ...DATA, ...(isCut ? (['tp'] as const) : []));
}

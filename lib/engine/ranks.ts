// Whose ranks: every place of an engine that counts, compares or names ranks says which of these it
// means.
import type { Axis, Distributed, Mesh, ProcessGroup } from '../comm/index.js';
import { DsError } from '../errors.js';
import type { Parameter } from '../nn/parameter.js';
import { isPart } from '../runtime/box.js';

/** Ranks that differ here have other samples of a batch. */
export const DATA: readonly Axis[] = ['dp'];

/**
 * The axes along which parts of a model may lie: with the data rank, a rank's place among those
 * that save. Ranks that differ here alone do and hold the same unless the model is cut there.
 */
export const MODEL: readonly Axis[] = ['pp', 'sp', 'tp'];

/** Along which of the axes a model, or what it computes, is cut. */
export interface Cuts {
  /** Axis pp has the stages of a pipeline. */
  stages?: boolean;
  /** Axis tp has parts of its layers. */
  layers?: boolean;
  /** Axis sp has tokens of its samples. */
  tokens?: boolean;
}

/** A rank's groups in the job that trains an engine. */
export interface Ranks {
  /**
   * All of them: who prints, whose wish to stop counts, who saves and loads checkpoints together.
   */
  readonly world: ProcessGroup;
  /** Those that share out a batch: its sizes, samplers, dropout, mean gradients and losses. */
  readonly data: ProcessGroup;
  /**
   * Those that share out gradients and state: the data ranks, and those with the other tokens of
   * their samples, whose gradients are parts of a sum; of MiCS, those of one copy.
   */
  readonly shards: ProcessGroup;
  /** Those with the same shards in other copies (MiCS); null where there is one copy. */
  readonly replicas: ProcessGroup | null;
  /**
   * Those of the shards' ranks that share a second copy of weights out (hpZ); null: nobody does.
   */
  readonly near: ProcessGroup | null;
  /** Those with the other tokens of this rank's samples; null where samples are whole. */
  readonly tokens: ProcessGroup | null;
  /** Those with the same parameters, which all start with the values of the first. */
  readonly alike: ProcessGroup;
  /** Those that have the parts of each layer; null where layers are whole. */
  readonly layers: ProcessGroup | null;
  readonly mesh: Mesh;
  /** The axes along which ranks do and hold the same. */
  readonly copies: readonly Axis[];
  /** Those whose losses are the batch's: the data ranks, of the last stage of a pipeline. */
  readonly reporters: readonly number[];
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
export async function ranksOf(
  job: Distributed,
  cuts: Cuts = {},
  sizes: ShardSizes = {},
): Promise<Ranks> {
  const { world, mesh, localRank } = job;
  const { stages = false, layers: isCut = false, tokens: isShared = false } = cuts;
  const isCutOn: Partial<Record<Axis, boolean>> = { pp: stages, tp: isCut, sp: isShared };
  const copies = MODEL.filter((axis) => !isCutOn[axis]);
  const data = await mesh.axis(...DATA);
  const all = await mesh.axis(...shardAxes(isShared));
  const { shards, replicas, near } = await copiesOf(job, all, sizes);
  const alike = await mesh.axis(...shardAxes(isShared), ...copies);
  const layers = isCut ? await mesh.axis('tp') : null;
  const tokens = isShared ? await mesh.axis('sp') : null;
  const isFirst = (layers?.rank ?? 0) === 0;
  return {
    ...{ world, data, shards, replicas, near, tokens, alike, layers, mesh, copies, localRank },
    isCopy: mesh.place(...copies) > 0 || (replicas?.rank ?? 0) > 0,
    reporters: reportersOf(mesh, cuts),
    counting: replicas
      ? shards.ranks.flatMap((rank) =>
          mesh.shape.ranksAlong(rank, ...(isCut ? ['tp' as const] : [])),
        )
      : countingAt(mesh, world.rank, cuts),
    answersFor: ({ region, isReplica }) => !isReplica && (isFirst || isPart(region)),
  };
}

/**
 * Ranks of the copies of which there are several among those that share gradients and state out.
 */
export interface ShardSizes {
  /** Of each copy of weights, gradients and state; null for one of all (mics_shard_size). */
  copy?: number | null;
  /** Of each second copy of weights; null for none (zero_hpz_partition_size). */
  near?: number | null;
}

/** Neighbours share a copy out. Throws DS_CONFIG where copies do not come out even. */
async function copiesOf(
  job: Distributed,
  all: ProcessGroup,
  { copy = null, near = null }: ShardSizes,
): Promise<Pick<Ranks, 'shards' | 'replicas' | 'near'>> {
  const open = async (ranks: readonly number[]): Promise<ProcessGroup> =>
    ranks.length === all.size ? all : openOnce(job, ranks);
  const neighbours = (size: number, key: string): Promise<ProcessGroup> => {
    if (all.size % size !== 0) throw uneven(key, size, all);
    const first = all.rank - (all.rank % size);
    return open(all.ranks.slice(first, first + size));
  };
  const second = near === null ? null : await neighbours(near, 'zero_hpz_partition_size');
  if (copy === null) return { shards: all, replicas: null, near: second };
  const shards = await neighbours(copy, 'mics_shard_size');
  const same = all.ranks.filter((_, place) => place % copy === all.rank % copy);
  return { shards, replicas: copy < all.size ? await open(same) : null, near: second };
}

const opened = new WeakMap<Distributed, Map<string, Promise<ProcessGroup>>>();

/** Engines of a job that are cut alike have the same groups. */
function openOnce(job: Distributed, ranks: readonly number[]): Promise<ProcessGroup> {
  const known = opened.get(job) ?? new Map<string, Promise<ProcessGroup>>();
  opened.set(job, known);
  const key = ranks.join();
  const opening = known.get(key) ?? (job.newGroup(ranks) as Promise<ProcessGroup>);
  known.set(key, opening);
  opening.catch(() => known.delete(key));
  return opening;
}

function uneven(key: string, size: number, { ranks }: ProcessGroup): DsError {
  return new DsError({
    code: 'DS_CONFIG',
    op: `zero_optimization.${key}`,
    expected: `a divisor of the ${ranks.length} ranks that share gradients and state out`,
    got: String(size),
    hint: 'Take the ranks of one machine.',
  });
}

/** Along which ranks share out gradients and state. */
const shardAxes = (tokens: boolean): Axis[] => (tokens ? [...DATA, 'sp'] : [...DATA]);

function reportersOf({ shape, coordinates }: Mesh, { stages, layers, tokens }: Cuts): number[] {
  const pp = stages ? shape.sizes.pp - 1 : coordinates.pp;
  const tp = layers ? 0 : coordinates.tp;
  const sp = tokens ? 0 : coordinates.sp;
  return shape.ranksAlong(shape.rankAt({ ...coordinates, pp, sp, tp }), ...DATA);
}

/** The ranks that count what `rank` has a part of, itself among them. */
export function countingAt({ shape }: Mesh, rank: number, { layers, tokens }: Cuts): number[] {
  return shape.ranksAlong(rank, ...shardAxes(tokens ?? false), ...(layers ? ['tp' as const] : []));
}

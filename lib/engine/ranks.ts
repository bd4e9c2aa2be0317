// The process groups of a rank, by purpose.
import type { ResolvedConfig } from '../../types/config.js';
import type { Axis, Distributed, Mesh, ProcessGroup } from '../comm/index.js';
import { AXES, AXIS } from '../comm/mesh-shape.js';
import { DsError } from '../errors.js';
import type { Parameter } from '../nn/parameter.js';
import { isPart } from '../runtime/box.js';

/** Ranks along these axes have different samples of a batch. */
export const DATA: readonly Axis[] = [AXIS.data];

/**
 * The axes along which a model may be divided. A rank's index along them, with its data rank, names
 * its checkpoint files. Ranks that differ only here are identical unless the model is divided
 * there.
 */
export const MODEL: readonly Axis[] = AXES.filter((axis) => !DATA.includes(axis));

/** The axes along which a model, or its computation, is divided. */
export interface ModelAxes {
  /** Axis pp holds the stages of a pipeline. */
  stages?: boolean;
  /** Axis tp holds parts of layers. */
  layers?: boolean;
  /** Axis sp holds tokens of samples. */
  tokens?: boolean;
}

/** The groups of a rank in the job of an engine. */
export interface Ranks {
  /** All ranks: printing, stop requests, and joint saving and loading of checkpoints. */
  readonly world: ProcessGroup;
  /** Ranks that divide a batch: batch sizes, samplers, dropout, mean gradients and losses. */
  readonly dataGroup: ProcessGroup;
  /**
   * The shard group: divides gradients and optimizer state. It holds the data ranks and, with
   * sequence parallelism, the ranks with other tokens of the same samples, because their gradients
   * are partial sums. With MiCS: the ranks of one replica.
   */
  readonly shardGroup: ProcessGroup;
  /** Ranks with the same shard in other replicas (MiCS); null with one replica. */
  readonly replicaGroup: ProcessGroup | null;
  /** Ranks of the shard group that divide the secondary weight copy of hpZ; null without it. */
  readonly secondaryGroup: ProcessGroup | null;
  /** Ranks with other tokens of this rank's samples; null without sequence parallelism. */
  readonly sequenceGroup: ProcessGroup | null;
  /** Ranks with the same parameters. All start with the values of the first one. */
  readonly broadcastGroup: ProcessGroup;
  /** Ranks that have the parts of each layer; null without tensor parallelism. */
  readonly tensorGroup: ProcessGroup | null;
  readonly mesh: Mesh;
  /** The axes along which ranks are identical. */
  readonly replicaAxes: readonly Axis[];
  /**
   * Ranks that contribute the loss of a batch: the data ranks; with a pipeline, those of the last
   * stage.
   */
  readonly lossRanks: readonly number[];
  /** Ranks that contribute sums of squares to the norm: the shard group and the tensor ranks. */
  readonly normRanks: readonly number[];
  /** Rank of this process on its host. */
  readonly localRank: number;
  /** Whether a lower rank holds the same state and saves it. */
  readonly isReplica: boolean;
  /**
   * Returns whether this rank counts a parameter in norms and saves it. If several tensor ranks
   * hold the same parameter, only the first does.
   */
  isPrimary(parameter: Parameter): boolean;
}

/** Returns the different groups of `ranks`. */
export function groupsOf(ranks: Ranks): Set<ProcessGroup> {
  const { world, dataGroup, shardGroup, broadcastGroup } = ranks;
  const { tensorGroup, sequenceGroup, replicaGroup, secondaryGroup } = ranks;
  const some = [tensorGroup, sequenceGroup, replicaGroup, secondaryGroup];
  return new Set([
    world,
    dataGroup,
    shardGroup,
    broadcastGroup,
    ...some.filter((group) => group !== null),
  ]);
}

/**
 * Returns the groups of this rank, and opens missing ones. All ranks of the job call it together.
 */
export async function openRanks(
  job: Distributed,
  modelAxes: ModelAxes = {},
  sizes: ShardSizes = {},
): Promise<Ranks> {
  const { world, mesh, localRank } = job;
  const { stages = false, layers: isCut = false, tokens: isShared = false } = modelAxes;
  const isCutOn: Partial<Record<Axis, boolean>> = {
    [AXIS.pipeline]: stages,
    [AXIS.sequence]: isShared,
    [AXIS.tensor]: isCut,
  };
  const replicaAxes = MODEL.filter((axis) => !isCutOn[axis]);
  const dataGroup = await mesh.group(DATA);
  const shardRanks = await mesh.group(shardAxes(isShared));
  const groups = await openReplicas(job, shardRanks, sizes);
  const { shardGroup, replicaGroup } = groups;
  const broadcastGroup = await mesh.group([...shardAxes(isShared), ...replicaAxes]);
  const tensorGroup = isCut ? await mesh.axis(AXIS.tensor) : null;
  const sequenceGroup = isShared ? await mesh.axis(AXIS.sequence) : null;
  const isFirst = (tensorGroup?.rank ?? 0) === 0;
  return {
    world,
    dataGroup,
    ...groups,
    sequenceGroup,
    broadcastGroup,
    tensorGroup,
    mesh,
    replicaAxes,
    localRank,
    isReplica: mesh.place(...replicaAxes) > 0 || (replicaGroup?.rank ?? 0) > 0,
    lossRanks: lossRanksOf(mesh, modelAxes),
    normRanks: replicaGroup
      ? shardGroup.ranks.flatMap((rank) =>
          mesh.shape.ranksAlong(rank, ...(isCut ? [AXIS.tensor] : [])),
        )
      : normRanksAt(mesh, world.rank, modelAxes),
    isPrimary: ({ region, isReplica }) => !isReplica && (isFirst || isPart(region)),
  };
}

/** Sizes of replicas within the shard group. */
interface ShardSizes {
  /**
   * Ranks in each replica of weights, gradients and state (mics_shard_size). Default: null, one
   * replica.
   */
  replica?: number | null;
  /** Ranks in each secondary weight copy (zero_hpz_partition_size). Default: null, no copy. */
  secondary?: number | null;
}

/** Returns the sizes of replicas (MiCS) and of secondary weight copies (hpZ). */
export function shardSizes({ zero_optimization: zero }: ResolvedConfig): ShardSizes {
  const { stage, mics_shard_size: copy, zero_hpz_partition_size: hpzSize } = zero;
  if (stage !== 3) return {};
  return { replica: copy > 0 ? copy : null, secondary: hpzSize > 1 ? hpzSize : null };
}

/** Consecutive ranks form a replica. Throws DS_CONFIG if the replicas are not equal in size. */
async function openReplicas(
  job: Distributed,
  all: ProcessGroup,
  { replica = null, secondary = null }: ShardSizes,
): Promise<Pick<Ranks, 'shardGroup' | 'replicaGroup' | 'secondaryGroup'>> {
  const openGroup = async (ranks: readonly number[]): Promise<ProcessGroup> =>
    ranks.length === all.size ? all : openOnce(job, ranks);
  const openNeighbours = (size: number, key: string): Promise<ProcessGroup> => {
    if (all.size % size !== 0) throw unevenError(key, size, all);
    const first = all.rank - (all.rank % size);
    return openGroup(all.ranks.slice(first, first + size));
  };
  const second =
    secondary === null ? null : await openNeighbours(secondary, 'zero_hpz_partition_size');
  if (replica === null) return { shardGroup: all, replicaGroup: null, secondaryGroup: second };
  const shards = await openNeighbours(replica, 'mics_shard_size');
  const sameShard = all.ranks.filter((_, place) => place % replica === all.rank % replica);
  return {
    shardGroup: shards,
    replicaGroup: replica < all.size ? await openGroup(sameShard) : null,
    secondaryGroup: second,
  };
}

const openGroups = new WeakMap<Distributed, Map<string, Promise<ProcessGroup>>>();

/** Returns the group of `ranks`. Engines of one job share their groups. */
function openOnce(job: Distributed, ranks: readonly number[]): Promise<ProcessGroup> {
  const known = openGroups.get(job) ?? new Map<string, Promise<ProcessGroup>>();
  openGroups.set(job, known);
  const key = ranks.join();
  const opening = known.get(key) ?? (job.newGroup(ranks) as Promise<ProcessGroup>);
  known.set(key, opening);
  opening.catch(() => known.delete(key));
  return opening;
}

function unevenError(key: string, size: number, { ranks }: ProcessGroup): DsError {
  return new DsError({
    code: 'DS_CONFIG',
    op: `zero_optimization.${key}`,
    expected: `a divisor of the ${ranks.length} ranks of the ZeRO shard group`,
    got: String(size),
    hint: 'Use the number of ranks of one host.',
  });
}

/** Returns the number of ranks of the shard group, before it is opened. */
export const shardCount = (
  mesh: Mesh,
  { tokens = false }: ModelAxes,
  { replica }: ShardSizes,
): number => replica ?? mesh.size(...shardAxes(tokens));

/** Returns the error of key `op`, which asks for `size` ranks along `axis`. */
export function otherMeshError(
  op: string,
  axis: Axis,
  size: number,
  { mesh, worldSize }: Pick<Distributed, 'mesh' | 'worldSize'>,
): DsError {
  const hint =
    worldSize === 1
      ? `Start ${size} ranks: ds --num_procs ${size} SCRIPT, or --num_gpus.`
      : `Pass { mesh: { ${axis}: ${size} } } to initDistributed(), or let initialize() join the job.`;
  const expected = `${mesh.size(axis)}, the ranks on the mesh's axis ${axis}`;
  return new DsError({ code: 'DS_CONFIG', op, expected, got: String(size), hint });
}

/** Returns the axes of the shard group. */
const shardAxes = (tokens: boolean): Axis[] => (tokens ? [...DATA, AXIS.sequence] : [...DATA]);

function lossRanksOf(
  { shape, coordinates }: Mesh,
  { stages, layers, tokens }: ModelAxes,
): number[] {
  const first = {
    ...coordinates,
    ...(stages && { [AXIS.pipeline]: shape.sizes[AXIS.pipeline] - 1 }),
    ...(tokens && { [AXIS.sequence]: 0 }),
    ...(layers && { [AXIS.tensor]: 0 }),
  };
  return shape.ranksAlong(shape.rankAt(first), ...DATA);
}

/** Returns the ranks that count the norm with `rank`, including itself. */
export function normRanksAt(
  { shape }: Mesh,
  rank: number,
  { layers, tokens }: ModelAxes,
): number[] {
  return shape.ranksAlong(rank, ...shardAxes(tokens ?? false), ...(layers ? [AXIS.tensor] : []));
}

// The process groups that an engine uses, by purpose.
import type { ResolvedConfig } from '../../types/config.js';
import type { Axis, Distributed, Mesh, ProcessGroup } from '../comm/index.js';
import { AXES, AXIS } from '../comm/mesh-shape.js';
import { DsError } from '../errors.js';
import type { Parameter } from '../nn/parameter.js';
import { isPart } from '../runtime/box.js';

/** The axes along which ranks have different samples of a batch. */
export const DATA: readonly Axis[] = [AXIS.data];

/**
 * The axes along which a model may be divided. A checkpoint file is named by the rank's index along
 * them and its data rank. If the model is not divided along such an axis, the ranks along it are
 * identical.
 */
export const MODEL: readonly Axis[] = AXES.filter((axis) => !DATA.includes(axis));

/** Which axes of the mesh divide the model or its computation. */
export interface ModelAxes {
  /** Axis pp divides the model into pipeline stages. */
  stages?: boolean;
  /** Axis tp divides layers. */
  layers?: boolean;
  /** Axis sp divides the tokens of samples. */
  tokens?: boolean;
}

/** The groups of this rank in the job of an engine. */
export interface Ranks {
  /** All ranks. For printing, stop requests, and joint saves and loads. */
  readonly world: ProcessGroup;
  /** Ranks that divide a batch. For batch sizes, samplers, dropout, mean gradients and losses. */
  readonly dataGroup: ProcessGroup;
  /**
   * The shard group: ranks that divide gradients and optimizer state. It contains the data ranks.
   * With sequence parallelism, it also contains the ranks with other tokens of the same samples,
   * because their gradients are partial sums. With MiCS, it contains the ranks of one replica only.
   */
  readonly shardGroup: ProcessGroup;
  /** Ranks with the same shard in other replicas (MiCS). Null with one replica. */
  readonly replicaGroup: ProcessGroup | null;
  /**
   * Ranks of the shard group that divide a secondary copy of the weights (hpZ). Null without hpZ.
   */
  readonly secondaryGroup: ProcessGroup | null;
  /** Ranks with other tokens of this rank's samples. Null without sequence parallelism. */
  readonly sequenceGroup: ProcessGroup | null;
  /** Ranks with the same parameters. All of them start with the values of the first rank. */
  readonly broadcastGroup: ProcessGroup;
  /** Ranks that divide the layers of this rank. Null without tensor parallelism. */
  readonly tensorGroup: ProcessGroup | null;
  readonly mesh: Mesh;
  /** The axes along which ranks are identical. */
  readonly replicaAxes: readonly Axis[];
  /**
   * Ranks that contribute the loss of a batch: the data ranks. With a pipeline, the data ranks of
   * the last stage.
   */
  readonly lossRanks: readonly number[];
  /**
   * Ranks that contribute sums of squares to the norm: the shard group, and the tensor ranks of
   * each member.
   */
  readonly normRanks: readonly number[];
  /** Index of this process on its host. */
  readonly localRank: number;
  /** Whether another rank with a smaller index holds the same state, and saves it. */
  readonly isReplica: boolean;
  /**
   * Returns whether this rank counts a parameter in norms, and saves it. If several tensor ranks
   * hold the same parameter, only the first rank does.
   */
  isPrimary(parameter: Parameter): boolean;
}

/** Returns all different groups of `ranks`. */
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
 * Opens the groups of this rank, or returns open ones. All ranks of the job must call it together.
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

/** Sizes of groups within the shard group. */
interface ShardSizes {
  /**
   * Number of ranks in each replica of weights, gradients and state (mics_shard_size). Default:
   * null, one replica.
   */
  replica?: number | null;
  /**
   * Number of ranks in each secondary copy of weights (zero_hpz_partition_size). Default: null, no
   * copy.
   */
  secondary?: number | null;
}

/** Returns the sizes of replicas (MiCS) and of secondary weight copies (hpZ) in a configuration. */
export function shardSizes({ zero_optimization: zero }: ResolvedConfig): ShardSizes {
  const { stage, mics_shard_size: copy, zero_hpz_partition_size: hpzSize } = zero;
  if (stage !== 3) return {};
  return { replica: copy > 0 ? copy : null, secondary: hpzSize > 1 ? hpzSize : null };
}

/**
 * Opens the groups of replicas. A replica consists of consecutive ranks. Throws DS_CONFIG if the
 * size does not divide the number of ranks.
 */
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

/** Returns the group of `ranks`. All engines of a job share it. */
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

/** Returns the number of ranks in the shard group, before the group is opened. */
export const shardCount = (
  mesh: Mesh,
  { tokens = false }: ModelAxes,
  { replica }: ShardSizes,
): number => replica ?? mesh.size(...shardAxes(tokens));

/** Returns the error for a configuration key `op` that needs `size` ranks along `axis`. */
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

/** Returns the ranks that compute the norm together with `rank`, including `rank`. */
export function normRanksAt(
  { shape }: Mesh,
  rank: number,
  { layers, tokens }: ModelAxes,
): number[] {
  return shape.ranksAlong(rank, ...shardAxes(tokens ?? false), ...(layers ? [AXIS.tensor] : []));
}

// Mesh: this rank on the grid of its job, and the groups along its axes. When ranks join, they
// compare their meshes.

import { DsError } from '../errors.js';
import type { Job } from '../runtime/job.js';
import { type Axis, type MeshOptions, MeshShape, type PerAxis } from './mesh-shape.js';
import type { ProcessGroup } from './process-group.js';

/** Opens the group of `ranks`, which include this rank. A group of one rank opens no connection. */
type OpenGroup = (name: string, ranks: readonly number[]) => Promise<ProcessGroup>;

/** The ranks of a job as a grid. In a single process, all axes have one rank. */
export class Mesh<Name extends string = Axis> {
  /** Coordinates of this rank. */
  readonly coordinates: PerAxis<Name>;
  /** By name: the groups that were opened. */
  private readonly groups = new Map<string, Promise<ProcessGroup>>();

  /** @internal Use Distributed.mesh. */
  constructor(
    /** The axes and their sizes. */
    readonly shape: MeshShape<Name>,
    private readonly world: ProcessGroup,
    private readonly open: OpenGroup,
  ) {
    this.coordinates = shape.coordinates(world.rank);
  }

  /** Returns the number of ranks that differ from this rank only on `axes`, including this rank. */
  size(...axes: Name[]): number {
    return this.shape.size(...axes);
  }

  /** Returns the index of this rank among the ranks that differ only on `axes`. */
  place(...axes: Name[]): number {
    return this.shape.indexAlong(this.world.rank, ...axes);
  }

  /**
   * Resolves with the group of ranks that differ only on `axes`. Its `rank` is the index of this
   * rank. The first call opens the group, so all ranks of the job must request the same axes in the
   * same order. Rejects with DS_COMM if a rank does not, and with DS_ARGUMENT for an unknown axis.
   */
  async group(axes: readonly Name[]): Promise<ProcessGroup> {
    const { shape } = this;
    const ranks = shape.ranksAlong(this.world.rank, ...axes);
    if (ranks.length === this.world.size) return this.world;
    const long = shape.axes.filter((axis) => axes.includes(axis) && shape.sizes[axis] > 1);
    const name = `${long.join(' x ') || 'alone'} [${ranks.join(', ')}]`;
    const known = this.groups.get(name);
    if (known) return known;
    const opening = this.open(name, ranks);
    this.groups.set(name, opening);
    opening.catch(() => this.groups.delete(name));
    return opening;
  }

  /** Resolves with group(axes). Short form for one axis: axis('dp'). */
  axis(...axes: Name[]): Promise<ProcessGroup> {
    return this.group(axes);
  }
}

/**
 * Returns the mesh of this rank, and its text for other ranks. If `given` does not fit the number
 * of ranks, `refused` is the error. The rank first reports the mesh, then throws the error.
 */
export function meshOf(
  ranks: number,
  given: MeshOptions | undefined,
): { shape: MeshShape; reported: string; refused: DsError | null } {
  try {
    const shape = MeshShape.over(ranks, given);
    return { shape, reported: String(shape), refused: null };
  } catch (error) {
    const sizes = Object.entries(given ?? {}).map(([axis, size]) => `${axis} ${size}`);
    const reported = `${sizes.join(' x ') || 'no mesh'} (invalid for ${ranks} ranks)`;
    return { shape: MeshShape.over(ranks), reported, refused: error as DsError };
  }
}

/** Returns the key of a rank's mesh in the store. */
const keyOf = (rank: number): string => `mesh/${rank}`;

/** Reports the mesh of this rank to the store. findOtherMesh() on every rank reads it. */
export async function announceMesh(job: Job, rank: number, reported: string): Promise<void> {
  await job.set(keyOf(rank), reported);
}

/**
 * Returns an error if a rank has another mesh than rank 0, else null. All ranks get the same error.
 * Every rank must have reported its mesh.
 */
export async function findOtherMesh(job: Job, worldSize: number): Promise<DsError | null> {
  const first = await job.get(keyOf(0), 0);
  for (let rank = 1; rank < worldSize; ++rank) {
    const other = await job.get(keyOf(rank), 0);
    if (other === first) continue;
    return new DsError({
      code: 'DS_ARGUMENT',
      op: 'initDistributed mesh',
      expected: `the same on every rank: ${first} as on rank 0`,
      got: `${other} on rank ${rank}`,
      hint: 'Pass the same mesh on every rank.',
    });
  }
  return null;
}

/** Throws DS_ARGUMENT unless the job has the mesh `expected`. */
export function requireMesh(shape: MeshShape, expected: MeshShape): void {
  if (String(shape) === String(expected)) return;
  throw new DsError({
    code: 'DS_ARGUMENT',
    op: 'initDistributed mesh',
    expected: `${shape}, the mesh of the joined job`,
    got: String(expected),
    hint: 'Pass the mesh to the first initDistributed(), or destroy() the job first.',
  });
}

// The mesh that ranks join a job with: all of them have to name the same one.
import { DsError } from '../errors.js';
import type { Job } from '../runtime/job.js';
import { type MeshOptions, MeshShape } from './mesh-shape.js';

/**
 * The mesh of this rank, and what the others are told of it. One that the ranks do not fill is
 * `refused`, once they have been told.
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
    const reported = `${sizes.join(' x ') || 'none'}, which ${ranks} ranks do not fill,`;
    return { shape: MeshShape.over(ranks), reported, refused: error as DsError };
  }
}

/** Where a rank says in the store what its mesh is. */
const keyOf = (rank: number): string => `mesh/${rank}`;

/** Says what meshOf() gives to tell, which otherMesh() of every rank reads. */
export async function announceMesh(job: Job, rank: number, reported: string): Promise<void> {
  await job.set(keyOf(rank), reported);
}

/**
 * What every rank throws where one has another mesh than rank 0; all have told theirs before they
 * opened a group.
 */
export async function otherMesh(job: Job, worldSize: number): Promise<DsError | null> {
  const first = await job.get(keyOf(0), 0);
  for (let rank = 1; rank < worldSize; ++rank) {
    const other = await job.get(keyOf(rank), 0);
    if (other === first) continue;
    return new DsError({
      code: 'DS_ARGUMENT',
      op: 'initDistributed mesh',
      expected: `the same on every rank: ${first} as on rank 0`,
      got: `${other} on rank ${rank}`,
      hint: 'Give every rank the same mesh.',
    });
  }
  return null;
}

/** Throws DS_ARGUMENT unless the job was joined with this mesh. */
export function requireMesh(shape: MeshShape, wanted: MeshShape): void {
  if (String(shape) === String(wanted)) return;
  throw new DsError({
    code: 'DS_ARGUMENT',
    op: 'initDistributed mesh',
    expected: `${shape}, as the job was joined`,
    got: String(wanted),
    hint: 'Give the mesh to the first initDistributed(), or destroy() the job before.',
  });
}

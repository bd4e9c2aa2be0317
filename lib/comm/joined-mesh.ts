// Compares the meshes of all ranks when they join a job.
import { DsError } from '../errors.js';
import type { Job } from '../runtime/job.js';
import { type MeshOptions, MeshShape } from './mesh-shape.js';

/**
 * Returns the mesh of this rank, and its description for the others. A mesh with another number of
 * ranks is in `refused`; the rank throws it after it has reported it.
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

/** A rank's key in the store for its mesh. */
const keyOf = (rank: number): string => `mesh/${rank}`;

/** Reports the mesh of meshOf(). otherMesh() of every rank reads it. */
export async function announceMesh(job: Job, rank: number, reported: string): Promise<void> {
  await job.set(keyOf(rank), reported);
}

/**
 * Returns the error for every rank if one has another mesh than rank 0. All ranks report their mesh
 * before they open a group.
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
      hint: 'Pass the same mesh on every rank.',
    });
  }
  return null;
}

/** Throws DS_ARGUMENT unless the job has this mesh. */
export function requireMesh(shape: MeshShape, wanted: MeshShape): void {
  if (String(shape) === String(wanted)) return;
  throw new DsError({
    code: 'DS_ARGUMENT',
    op: 'initDistributed mesh',
    expected: `${shape}, the mesh of the joined job`,
    got: String(wanted),
    hint: 'Pass the mesh to the first initDistributed(), or destroy() the job first.',
  });
}

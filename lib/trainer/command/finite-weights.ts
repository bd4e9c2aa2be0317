// Checks that the weights that `ds train` has saved are finite.
import { join } from 'node:path';

import { type CheckpointWorld, onAllRanks, WeightFiles } from '../../checkpoint/index.js';
import { DsError } from '../../errors.js';
import { isFloating } from '../../runtime/dtype.js';
import { isfinite, scope, type Tensor } from '../../tensor/index.js';

/** Number of elements that are checked at a time. */
const CHUNK = 2 ** 22;

/** A saved model, and the number of its updates. */
interface SavedWeights {
  dir: string;
  /** Whether `dir` contains an adapter instead of a model. */
  isAdapter: boolean;
  step: number;
}

/**
 * Throws DS_NONFINITE on all ranks if a saved weight is infinite or NaN. The last update may cause
 * it, because no loss is computed after it. Rank 0 reads the files.
 */
export async function requireFiniteWeights(
  { dir, isAdapter, step }: SavedWeights,
  world: CheckpointWorld,
): Promise<void> {
  const path = isAdapter ? join(dir, 'adapter_model.safetensors') : dir;
  const [damaged] = await onAllRanks(world, 'reading the saved weights', async () =>
    world.rank === 0 ? findNonFinite(path) : null,
  );
  if (damaged === null) return;
  throw new DsError({
    code: 'DS_NONFINITE',
    op: dir,
    expected: `finite weights after step ${step}`,
    got: `NaN or infinity in ${damaged}`,
    hint: 'Its updates were too large: take a lower rate, from an earlier checkpoint on. The saved weights are unusable.',
  });
}

/** Returns the name of the first tensor with an infinite or NaN element, or null. */
async function findNonFinite(path: string): Promise<string | null> {
  const files = await WeightFiles.open(path);
  try {
    for (const [name, { dtype }] of files.tensors) {
      if (!isFloating(dtype)) continue;
      const values = await files.read(name);
      try {
        if (!isAllFinite(values)) return name;
      } finally {
        values.release();
      }
    }
    return null;
  } finally {
    await files.close();
  }
}

function isAllFinite(values: Tensor): boolean {
  for (let from = 0; from < values.numel; from += CHUNK) {
    const count = Math.min(CHUNK, values.numel - from);
    const hasOnlyFinite = scope(() =>
      isfinite(values.reshape([-1]).narrow(0, from, count))
        .all()
        .item(),
    );
    if (!hasOnlyFinite) return false;
  }
  return true;
}

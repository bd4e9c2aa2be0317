// Whether what a run has saved are numbers: weights that are not finite are no result.
import { join } from 'node:path';

import { type CheckpointWorld, inUnison, WeightFiles } from '../../checkpoint/index.js';
import { DsError } from '../../errors.js';
import { isFloating } from '../../runtime/dtype.js';
import { isfinite, scope, type Tensor } from '../../tensor/index.js';

/** Elements that are looked at together. */
const PIECE = 2 ** 22;

/** What was saved, and after how many updates. */
export interface Saved {
  dir: string;
  /** Whether `dir` has an adapter in place of a model. */
  isAdapter: boolean;
  step: number;
}

/**
 * Throws DS_NONFINITE on all ranks where a weight in the files is infinite or no number: the
 * update behind the last loss may have made it so. The first rank reads them.
 */
export async function requireFinite(
  { dir, isAdapter, step }: Saved,
  world: CheckpointWorld,
): Promise<void> {
  const path = isAdapter ? join(dir, 'adapter_model.safetensors') : dir;
  const [damaged] = await inUnison(world, 'reading what was saved', async () =>
    world.rank === 0 ? damagedIn(path) : null,
  );
  if (damaged === null) return;
  throw new DsError({
    code: 'DS_NONFINITE',
    op: dir,
    expected: `finite weights after step ${step}`,
    got: `NaN or infinity in ${damaged}`,
    hint: 'Its updates were too large: take a lower rate, from an earlier checkpoint on. What was saved is of no use.',
  });
}

/** The name of the first tensor that holds something else than finite numbers; null: none does. */
async function damagedIn(path: string): Promise<string | null> {
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
  for (let from = 0; from < values.numel; from += PIECE) {
    const count = Math.min(PIECE, values.numel - from);
    const isFine = scope(() =>
      isfinite(values.reshape([-1]).narrow(0, from, count))
        .all()
        .item(),
    );
    if (!isFine) return false;
  }
  return true;
}

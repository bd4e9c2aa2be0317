// Checks free disk space before a write, because a failing write would first fill the disk.
import { DsError } from '../errors.js';
import { byteText } from '../runtime/byte-text.js';
import { diskOf } from '../runtime/disk.js';
import { hostLimits } from '../runtime/host-limits.js';
import { HINTS } from './file-error.js';
import { type CheckpointWorld, onAllRanks } from './world.js';

/** Throws DS_IO if the disk of `folder` has less than `bytes` free. */
export function requireSpace(folder: string, bytes: number): void {
  const { free } = diskOf(folder);
  if (bytes > free) throw tooLargeError(folder, bytes, free, 1);
}

/**
 * Compares the sum of `bytes` over all ranks of a host with the free space of the disk of `folder`.
 * Rejects on all ranks with DS_IO if a disk has too little.
 */
export async function requireSpaceTogether(
  world: CheckpointWorld,
  label: string,
  folder: string,
  bytes: () => number,
): Promise<void> {
  const claims = await onAllRanks(world, label, async () => {
    const { disk, free } = diskOf(folder);
    return { bytes: bytes(), free, disk: `${hostLimits().machine}\n${disk}` };
  });
  for (const { disk } of claims) {
    const here = claims.filter((claim) => claim.disk === disk);
    const needed = here.reduce((sum, item) => sum + item.bytes, 0);
    const free = Math.max(...here.map((item) => item.free));
    if (needed > free) throw tooLargeError(folder, needed, free, here.length);
  }
}

function tooLargeError(folder: string, bytes: number, free: number, ranks: number): DsError {
  return new DsError({
    code: 'DS_IO',
    op: `write to ${folder}`,
    expected: `${byteText(bytes)} of disk${ranks > 1 ? ` for ${ranks} ranks` : ''}`,
    got: `${byteText(free)} free`,
    hint: HINTS.ENOSPC,
  });
}

// Reads nvme_path and the aio section: the folder of a swap file and its I/O settings.

import type { ResolvedConfig } from '../../../types/config.js';
import { makeFolderNow } from '../../runtime/make-folder.js';
import { onDisk } from '../../runtime/on-disk.js';
import { SWAP_ALIGNMENT, type SwapFileInfo } from '../../runtime/swap-file.js';
import { absolutePath } from '../../runtime/system-error.js';

const IN_MEMORY: readonly string[] = ['tmpfs', 'ramfs'];

/** Returns the folder; creates it if it is missing. Throws DS_IO. */
export function folderOf(
  { zero_optimization: zero }: ResolvedConfig,
  section: 'offload_optimizer' | 'offload_param',
): string {
  const folder = absolutePath(zero[section].nvme_path as string);
  const wanted = {
    op: `zero_optimization.${section}.nvme_path ${folder}`,
    expected: 'a folder, or the permission to create it',
    hint: 'Set a folder on a local disk with write permission.',
  };
  onDisk(wanted, () => makeFolderNow(folder));
  return folder;
}

/** Bytes per request, queue depth, and checksum threads. */
export function requestsOf({ aio }: ResolvedConfig): {
  blockBytes: number;
  depth: number;
  checkers: number;
} {
  return {
    blockBytes: Math.ceil(aio.block_size / SWAP_ALIGNMENT) * SWAP_ALIGNMENT,
    depth: aio.queue_depth,
    checkers: aio.intra_op_parallelism,
  };
}

/** Warns if transfers of `what` cannot reach the speed of the disk. */
export function warnWhereSlow(what: string, folder: string, disk: SwapFileInfo): void {
  const warning = whatIsSlow(disk);
  if (!warning) return;
  process.emitWarning(`${what} in ${folder}: ${warning}`, { type: 'DsWarning', code: 'DS_IO' });
}

function whatIsSlow({ fileSystem, direct }: SwapFileInfo): string | null {
  if (IN_MEMORY.includes(fileSystem)) {
    return `${fileSystem} is memory, so nothing is saved. Use a folder on a disk.`;
  }
  if (direct) return null;
  return (
    `${fileSystem} refuses O_DIRECT, so transfers use the page cache and cost ` +
    'memory and copies. Use a folder on a local ext4 or xfs.'
  );
}

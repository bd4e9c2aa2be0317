// The nvme_path of a section, and the aio section: the folder of a swap file, how it is used, and
// what makes it slow.
import { resolve } from 'node:path';

import type { ResolvedConfig } from '../../../types/config.js';
import { makeFolderNow } from '../../runtime/make-folder.js';
import { onDisk } from '../../runtime/on-disk.js';
import { SWAP_ALIGNMENT, type SwapFileInfo } from '../../runtime/swap-file.js';

/** File systems that are memory. */
const IN_MEMORY: readonly string[] = ['tmpfs', 'ramfs'];

/** The folder, made where it is missing. Throws DS_IO. */
export function folderOf(
  { zero_optimization: zero }: ResolvedConfig,
  section: 'offload_optimizer' | 'offload_param',
): string {
  const folder = resolve(zero[section].nvme_path as string);
  const wanted = {
    op: `zero_optimization.${section}.nvme_path ${folder}`,
    expected: 'a folder, or the right to make it',
    hint: 'Name a folder on a local disk that this user may write to.',
  };
  onDisk(wanted, () => makeFolderNow(folder));
  return folder;
}

/** Bytes of a request, requests under way, and threads for checksums. */
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

/** Says why transfers of `what` are not those of a disk at its best, where they are not. */
export function warnWhereSlow(what: string, folder: string, disk: SwapFileInfo): void {
  const warning = whatIsSlow(disk);
  if (!warning) return;
  process.emitWarning(`${what} in ${folder}: ${warning}`, { type: 'DsWarning', code: 'DS_IO' });
}

function whatIsSlow({ fileSystem, direct }: SwapFileInfo): string | null {
  if (IN_MEMORY.includes(fileSystem)) {
    return `${fileSystem} is memory, so that nothing is saved. Name a folder on a disk.`;
  }
  if (direct) return null;
  return (
    `${fileSystem} refuses O_DIRECT, so that transfers pass through the page cache: they cost ` +
    'memory and copies. Name a folder on a local ext4 or xfs.'
  );
}

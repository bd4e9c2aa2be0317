// Opens files by names that come from other files. Only regular files directly in the given folder
// are allowed, so that a name cannot lead elsewhere. Weights may also be symbolic links that stay
// in their folder or in the cache of the Hugging Face hub.

import { realpath } from 'node:fs/promises';
import { basename, dirname, join, sep } from 'node:path';
import { DsError } from '../errors.js';
import { InputFile } from '../runtime/input-file.js';
import { errorCode } from '../runtime/system-error.js';

/** Throws DS_ARGUMENT unless `path` is a non-empty string without zero bytes. */
export function requirePath(op: string, path: unknown): asserts path is string {
  if (typeof path === 'string' && path !== '' && !path.includes('\0')) return;
  throw new DsError({
    code: 'DS_ARGUMENT',
    op,
    expected: 'the path of a folder',
    got: typeof path === 'string' ? JSON.stringify(path) : String(path),
    hint:
      path === '' ? 'Check that the variable of the path is set. The current folder is ".".' : '',
  });
}

/** Returns whether `name` is one path component: a file directly in the folder. */
export function isPlainName(name: string): boolean {
  return /^[^/\\\0]{1,255}$/.test(name) && name !== '.' && name !== '..';
}

/** The symbolic links that openInside() follows. */
interface Links {
  /**
   * Whether to follow links to files of the same folder, and links of a hub snapshot
   * (snapshots/COMMIT) to ../../blobs. Default: false, which follows no links.
   */
  followOwn?: boolean;
}

/**
 * Opens the file `name` of `folder`. Throws DS_CHECKPOINT if the name is not directly in the
 * folder. Throws it too for a folder, a missing file, or a link that is not followed. Throws DS_IO
 * if the file cannot be opened.
 */
export async function openInside(
  folder: string,
  name: string,
  { followOwn = false }: Links = {},
): Promise<InputFile> {
  if (!isPlainName(name)) {
    throw refusedError(folder, 'names of files directly in this folder', JSON.stringify(name));
  }
  const path = join(folder, name);
  return InputFile.open(path, { followLinks: false }).catch(async (error: DsError) => {
    switch (errorCode(error.cause)) {
      case undefined:
        throw error.expected === 'a regular file' ? refusedError(path, 'a file', error.got) : error;
      case 'ENOENT':
      case 'ENOTDIR':
        throw refusedError(path, 'an existing file', 'no such file');
      case 'ELOOP': {
        if (followOwn && (await staysInside(folder, path))) return InputFile.open(path);
        const hint = 'Copy the folder with `cp -rL`: links could lead out of it.';
        throw refusedError(path, 'a regular file', 'a symbolic link', hint);
      }
      default:
        throw error;
    }
  });
}

/**
 * Returns whether the link `path` leads to a file of its folder, or to a blob of its hub snapshot.
 */
async function staysInside(folder: string, path: string): Promise<boolean> {
  const resolved = await Promise.all([realpath(folder), realpath(path)]).catch(() => null);
  if (!resolved) return false;
  const [ownPath, target] = resolved;
  if (target.startsWith(ownPath + sep)) return true;
  const isSnapshot = basename(dirname(ownPath)) === 'snapshots';
  return isSnapshot && dirname(target) === join(ownPath, '..', '..', 'blobs');
}

function refusedError(op: string, expected: string, got: string, hint = ''): DsError {
  const advice = hint || 'The folder is damaged or incomplete: copy or download it again.';
  return new DsError({ code: 'DS_CHECKPOINT', op, expected, got, hint: advice });
}

// Files named by data: they are plain files directly inside the folder that names them, or they are not opened.
import { lstat } from 'node:fs/promises';
import { join } from 'node:path';

import { DsError } from '../errors.js';

/** Throws DS_ARGUMENT unless `path` can be one: text that is not empty and has no NUL. */
export function requirePath(op: string, path: unknown): asserts path is string {
  if (typeof path === 'string' && path !== '' && !path.includes('\0')) return;
  throw new DsError({
    code: 'DS_ARGUMENT',
    op,
    expected: 'the path of a folder',
    got: typeof path === 'string' ? JSON.stringify(path) : String(path),
    hint: path === '' ? 'Is the variable set that it comes from? The current folder is ".".' : '',
  });
}

/** Whether `name` is one path component that leads nowhere else. */
export function isPlainName(name: string): boolean {
  return /^[^/\\\0]{1,255}$/.test(name) && name !== '.' && name !== '..';
}

/**
 * The path and size of the file `name` of `folder`. Throws DS_CHECKPOINT for a name that leaves the folder, a symbolic
 * link, a folder, or nothing.
 */
export async function fileInside(
  folder: string,
  name: string,
): Promise<{ path: string; bytes: number }> {
  if (!isPlainName(name)) {
    throw refused(folder, 'names of files directly in this folder', JSON.stringify(name));
  }
  const path = join(folder, name);
  const status = await lstat(path).catch((cause: NodeJS.ErrnoException) => {
    if (cause.code === 'ENOENT') return null;
    throw refused(path, 'this file', cause.message, 'Check the path and who may read it.');
  });
  if (!status) throw refused(path, 'this file', 'no such file');
  if (status.isSymbolicLink()) {
    const hint = 'Links could lead out of the folder: copy it with `cp -rL`.';
    throw refused(path, 'a file of its own', 'a symbolic link', hint);
  }
  if (!status.isFile()) throw refused(path, 'a file', 'something else');
  return { path, bytes: status.size };
}

function refused(op: string, expected: string, got: string, hint = ''): DsError {
  const advice = hint || 'The folder is damaged or incomplete.';
  return new DsError({ code: 'DS_CHECKPOINT', op, expected, got, hint: advice });
}

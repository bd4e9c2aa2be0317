// Files named by data: they are plain files directly inside the folder that names them, or they are
// not opened.
import { join } from 'node:path';

import { DsError } from '../errors.js';
import { InputFile } from '../runtime/input-file.js';

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
 * Opens the file `name` of `folder`. Throws DS_CHECKPOINT for a name that leaves the folder, a
 * symbolic link, a folder, or nothing; DS_IO for a file that cannot be opened.
 */
export async function openInside(folder: string, name: string): Promise<InputFile> {
  if (!isPlainName(name)) {
    throw refused(folder, 'names of files directly in this folder', JSON.stringify(name));
  }
  const path = join(folder, name);
  return InputFile.open(path, { followLinks: false }).catch((error: DsError) => {
    switch ((error.cause as NodeJS.ErrnoException | undefined)?.code) {
      case undefined:
        throw error.expected === 'a regular file' ? refused(path, 'a file', error.got) : error;
      case 'ENOENT':
      case 'ENOTDIR':
        throw refused(path, 'this file', 'no such file');
      case 'ELOOP': {
        const hint = 'Links could lead out of the folder: copy it with `cp -rL`.';
        throw refused(path, 'a file of its own', 'a symbolic link', hint);
      }
      default:
        throw error;
    }
  });
}

function refused(op: string, expected: string, got: string, hint = ''): DsError {
  const advice = hint || 'The folder is damaged or incomplete.';
  return new DsError({ code: 'DS_CHECKPOINT', op, expected, got, hint: advice });
}

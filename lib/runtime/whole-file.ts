// Atomic writes of files, synchronously.
import { randomUUID } from 'node:crypto';
import {
  closeSync,
  fchmodSync,
  fsyncSync,
  lstatSync,
  openSync,
  readdirSync,
  realpathSync,
  renameSync,
  rmSync,
  statSync,
} from 'node:fs';
import { dirname, join } from 'node:path';

const DRAFT = /^(.+)\.[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;
/** A draft without writes for this long belongs to a dead process. */
const ABANDONED_MS = 24 * 3600 * 1000;

/**
 * Writes `path` atomically: `write` receives an open temporary file in the same folder, which then
 * replaces the old file. At any time, `path` is the complete old or new file. Follows links. Writes
 * to other kinds of files, such as a pipe or a dangling link, directly. Throws Node's errors.
 */
export function writeWhole(path: string, write: (file: number) => void): void {
  const quiet = { throwIfNoEntry: false } as const;
  const there = statSync(path, quiet);
  if (there ? !there.isFile() : lstatSync(path, quiet)) {
    writeTo(openSync(path, 'w'), write);
    return;
  }
  replace(there ? realpathSync(path) : path, there?.mode, write);
}

/**
 * Does writeWhole() in a folder that the program owns. Does not follow links: a new file replaces a
 * link, a pipe or a device. Also deletes abandoned drafts (a day old) of files whose names
 * `isOwnName` accepts. Throws Node's errors.
 */
export function writeOwn(
  path: string,
  write: (file: number) => void,
  isOwnName: (name: string) => boolean,
): void {
  removeAbandoned(dirname(path), isOwnName);
  replace(path, undefined, write);
}

function replace(path: string, mode: number | undefined, write: (file: number) => void): void {
  const draft = `${path}.${randomUUID()}`;
  try {
    writeTo(openSync(draft, 'wx'), (file) => {
      if (mode !== undefined) fchmodSync(file, mode);
      write(file);
      fsyncSync(file);
    });
    renameSync(draft, path);
  } catch (error) {
    attempt(() => rmSync(draft, { force: true })); // The first error is more useful.
    throw error;
  }
}

function writeTo(file: number, write: (file: number) => void): void {
  try {
    write(file);
  } finally {
    closeSync(file);
  }
}

function removeAbandoned(folder: string, isOwnName: (name: string) => boolean): void {
  for (const name of attempt(() => readdirSync(folder)) ?? []) {
    const [, of] = DRAFT.exec(name) ?? [];
    if (of === undefined || !isOwnName(of)) continue;
    const path = join(folder, name);
    const status = attempt(() => statSync(path));
    const isDead = status?.isFile() && Date.now() - status.mtimeMs > ABANDONED_MS;
    if (isDead) attempt(() => rmSync(path, { force: true }));
  }
}

function attempt<Result>(body: () => Result): Result | undefined {
  try {
    return body();
  } catch {
    return undefined;
  }
}

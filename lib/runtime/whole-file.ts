// Files that appear whole, in place of one that may be there, while the caller waits.
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
/** After this long, a draft that nobody writes to is one of a process that died. */
const ABANDONED_MS = 24 * 3600 * 1000;

/**
 * Writes `path` by `write`, which is given an open file beside it: the old file is there or the new
 * one, whole. What is no file, such as a pipe or a link to nowhere, is written to as it is. Of a
 * folder that is the program's own, drafts that died a day ago of files whose names are `alike` are
 * deleted. Throws Node's errors.
 */
export function writeWhole(
  path: string,
  write: (file: number) => void,
  alike?: (name: string) => boolean,
): void {
  const quiet = { throwIfNoEntry: false } as const;
  const there = statSync(path, quiet);
  if (there ? !there.isFile() : lstatSync(path, quiet)) {
    writeTo(openSync(path, 'w'), write);
    return;
  }
  const place = there ? realpathSync(path) : path;
  if (alike) removeAbandoned(dirname(place), alike);
  const draft = `${place}.${randomUUID()}`;
  try {
    writeTo(openSync(draft, 'wx'), (file) => {
      if (there) fchmodSync(file, there.mode);
      write(file);
      fsyncSync(file);
    });
    renameSync(draft, place);
  } catch (error) {
    tried(() => rmSync(draft, { force: true })); // Why it was not written says more.
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

function removeAbandoned(folder: string, alike: (name: string) => boolean): void {
  for (const name of tried(() => readdirSync(folder)) ?? []) {
    const [, of] = DRAFT.exec(name) ?? [];
    if (of === undefined || !alike(of)) continue;
    const path = join(folder, name);
    const status = tried(() => statSync(path));
    const isDead = status?.isFile() && Date.now() - status.mtimeMs > ABANDONED_MS;
    if (isDead) tried(() => rmSync(path, { force: true }));
  }
}

function tried<Result>(body: () => Result): Result | undefined {
  try {
    return body();
  } catch {
    return undefined;
  }
}

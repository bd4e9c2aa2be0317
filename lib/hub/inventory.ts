// Lists and removes the models of the cache. The files are the only state.
import { randomBytes } from 'node:crypto';
import { lstat, readdir, readFile, readlink, rename, rm, rmdir, stat } from 'node:fs/promises';
import { basename, dirname, join, relative, sep } from 'node:path';

import { ifThere, orDsError } from '../checkpoint/file-error.js';
import { DsError } from '../errors.js';
import { namesOf, readOptions } from '../runtime/options.js';
import { isLocked } from './blob-lock.js';
import { CachedModel, toFolderName } from './cache.js';
import { readHubSettings } from './environment.js';
import type { RevisionOptions } from './local-folder.js';
import { isCommit, isModelName, requireModelName, requireRevision, toPrintable } from './names.js';

/** A commit of a model in the cache. */
export interface CachedRevision {
  /** The 40 hexadecimal digits of the commit. */
  commit: string;
  /** Branches and tags of the commit, in alphabetical order. */
  refs: string[];
  /** Folder of the revision in `snapshots`, which fromPretrained() reads. */
  folder: string;
  /** Number of files. */
  files: number;
  /** Bytes of the files. Other revisions may share files. */
  bytes: number;
}

/** A model in the cache. */
export interface CachedModelInfo {
  /** `ORG/NAME`, or `NAME`. */
  name: string;
  /** Folder of the model in the cache. */
  folder: string;
  /** Bytes of all files; shared files count once. */
  bytes: number;
  /** Bytes of unfinished downloads. */
  unfinished: number;
  /** Time of the newest file, in milliseconds since 1970. */
  changed: number;
  /** Commits with files in the cache. */
  revisions: CachedRevision[];
}

/** Lists the models of the cache by name. Rejects with DS_IO if the cache cannot be read. */
export async function models(): Promise<CachedModelInfo[]> {
  const { cache } = readHubSettings();
  const names = (await ifThere(cache, () => readdir(cache))) ?? [];
  const cached: CachedModelInfo[] = [];
  for (const entry of names.filter((name) => name.startsWith('models--'))) {
    const name = entry.slice('models--'.length).replace('--', '/');
    const model = new CachedModel(cache, name);
    const status = await ifThere(model.folder, () => lstat(model.folder));
    if (isModelName(name) && status?.isDirectory()) cached.push(await readModelInfo(model));
  }
  return cached.sort((a, b) => (a.name < b.name ? -1 : 1));
}

/**
 * Removes a model from the cache, or one revision and the files that no other revision has.
 * Resolves with the number of freed bytes. Rejects with DS_HUB if the model is not in the cache, or
 * while a process downloads it. Rejects with DS_IO if a file cannot be removed.
 */
export async function remove(name: string, given: RevisionOptions = {}): Promise<number> {
  requireModelName('remove', name);
  const { revision } = readOptions('remove', given, namesOf.RevisionOptions);
  if (revision !== undefined) requireRevision('remove revision', revision);
  const { cache } = readHubSettings();
  const model = new CachedModel(cache, name);
  const status = await ifThere(model.folder, () => lstat(model.folder));
  if (!status?.isDirectory()) throw notCachedError(name, cache, `no model ${toPrintable(name)}`);
  const info = await readModelInfo(model);
  return orDsError(model.folder, async () => {
    await requireIdle(model);
    const removed = revision === undefined ? null : findRevision(model, info, revision);
    if (!removed || info.revisions.length === 1) return removeModel(model, info);
    await removeRevision(model, removed);
    return info.bytes - (await readModelInfo(model)).bytes;
  });
}

function findRevision(
  model: CachedModel,
  { revisions }: CachedModelInfo,
  revision: string,
): CachedRevision {
  const commit = model.readCommit(revision);
  const found = revisions.find((revision) => revision.commit === commit);
  if (found) return found;
  throw notCachedError(model.name, model.cache, `no revision ${toPrintable(revision)} of it`);
}

/** Removes a model. Renames the folder first, so that no process reads a part of it. */
async function removeModel(model: CachedModel, info: CachedModelInfo): Promise<number> {
  const hidden = join(model.cache, `.removed-${randomBytes(6).toString('hex')}`);
  await rename(model.folder, hidden);
  await rm(hidden, { recursive: true, force: true });
  const locks = dirname(model.lockPath('x'));
  await rm(locks, { recursive: true, force: true });
  return info.bytes + info.unfinished;
}

async function removeRevision(model: CachedModel, removed: CachedRevision): Promise<void> {
  const { commit, folder, refs } = removed;
  const blobNames = await listBlobs(model, folder);
  for (const ref of refs) await removeRef(model, ref);
  const hidden = join(model.folder, `.removed-${randomBytes(6).toString('hex')}`);
  await rename(folder, hidden);
  await rm(hidden, { recursive: true, force: true });
  await rm(dirname(model.absentPath(commit, 'x')), { recursive: true, force: true });
  const sharedBlobs = new Set<string>();
  for (const text of await listNames(dirname(folder))) {
    for (const blob of await listBlobs(model, join(dirname(folder), text))) sharedBlobs.add(blob);
  }
  for (const blob of blobNames) {
    if (!sharedBlobs.has(blob)) await rm(model.blobPath(blob), { force: true });
  }
}

async function removeRef(model: CachedModel, ref: string): Promise<void> {
  await rm(model.refPath(ref), { force: true });
  const top = dirname(model.refPath('x'));
  for (let at = dirname(model.refPath(ref)); at !== top; at = dirname(at)) {
    await rmdir(at).catch(() => {}); // Other refs of the folder stay.
  }
}

/** Throws DS_HUB while a process downloads a file of the model. */
async function requireIdle(model: CachedModel): Promise<void> {
  const locks = dirname(model.lockPath('x'));
  for (const name of await listNames(locks)) {
    if (!(await isLocked(join(locks, name)))) continue;
    throw new DsError({
      code: 'DS_HUB',
      op: model.name,
      expected: 'a model that no process downloads',
      got: `the lock ${join(locks, name)} of a running download`,
      hint: 'Wait for that process, or end it.',
    });
  }
}

async function readModelInfo(model: CachedModel): Promise<CachedModelInfo> {
  const refs = await readRefs(model);
  const revisions: CachedRevision[] = [];
  const snapshots = join(model.folder, 'snapshots');
  for (const commit of (await listNames(snapshots)).filter(isCommit).sort()) {
    const folder = model.snapshotFolder(commit);
    const sizes = await listSizes(folder);
    revisions.push({
      commit,
      folder,
      files: sizes.length,
      bytes: sum(sizes.map(({ bytes }) => bytes)),
      refs: refs.filter((ref) => ref.commit === commit).map(({ ref }) => ref),
    });
  }
  const blobs = await listSizes(join(model.folder, 'blobs'));
  const isBlob = ({ name }: FileSize): boolean => /^[0-9a-f]{40}([0-9a-f]{24})?$/.test(name);
  const unfinished = blobs.filter((blob) => !isBlob(blob));
  // On systems without links, such as Windows, the snapshots contain the files.
  const fileSizes = [...blobs.filter(isBlob), ...(await listSizes(snapshots))];
  return {
    name: model.name,
    folder: model.folder,
    revisions,
    bytes: sum([...new Map(fileSizes.map(({ id, bytes }) => [id, bytes])).values()]),
    unfinished: sum(unfinished.map(({ allocated }) => allocated)),
    changed: Math.max(0, ...[...fileSizes, ...unfinished].map(({ changed }) => changed)),
  };
}

/** Returns the branches and tags with their commits. The name of a ref may contain slashes. */
async function readRefs(model: CachedModel): Promise<{ ref: string; commit: string }[]> {
  const top = dirname(model.refPath('x'));
  const refs: { ref: string; commit: string }[] = [];
  for (const path of await listFiles(top)) {
    const text = await readFile(path, 'utf8').catch(() => '');
    const ref = relative(top, path).split(sep).join('/');
    if (isCommit(text.trim())) refs.push({ ref, commit: text.trim() });
  }
  return refs.sort((a, b) => (a.ref < b.ref ? -1 : 1));
}

/** A file, or the target of a link. */
interface FileSize {
  name: string;
  bytes: number;
  /** Bytes on the disk; unfinished files have holes. */
  allocated: number;
  changed: number;
  /** Device and inode, equal for links to the same file. */
  id: string;
}

async function listSizes(folder: string): Promise<FileSize[]> {
  const sizes: FileSize[] = [];
  for (const path of await listFiles(folder)) {
    const stats = await stat(path).catch(() => null);
    if (!stats?.isFile()) continue;
    const { size, blocks, mtimeMs, dev, ino } = stats;
    const allocated = Math.min(size, 512 * blocks);
    const id = `${dev}:${ino}`;
    sizes.push({ name: basename(path), bytes: size, allocated, changed: mtimeMs, id });
  }
  return sizes;
}

/** Returns the names of the blobs that a snapshot's links refer to. */
async function listBlobs(model: CachedModel, folder: string): Promise<Set<string>> {
  const blobs = new Set<string>();
  for (const path of await listFiles(folder)) {
    const target = await readlink(path).catch(() => null);
    if (target === null) continue;
    const targetPath = join(dirname(path), target);
    if (dirname(targetPath) === dirname(model.blobPath('x'))) blobs.add(basename(targetPath));
  }
  return blobs;
}

/**
 * Returns the paths of files and links in a folder and its subfolders. Does not follow links to
 * folders.
 */
async function listFiles(folder: string): Promise<string[]> {
  const entries = await readdir(folder, { withFileTypes: true }).catch(() => []);
  const paths: string[] = [];
  for (const entry of entries) {
    const path = join(folder, entry.name);
    if (entry.isDirectory()) paths.push(...(await listFiles(path)));
    else paths.push(path);
  }
  return paths;
}

const listNames = (folder: string): Promise<string[]> => readdir(folder).catch(() => []);

const sum = (numbers: readonly number[]): number =>
  numbers.reduce((all, number) => all + number, 0);

function notCachedError(name: string, cache: string, got: string): DsError {
  const expected = `a model in the cache ${cache}`;
  const hint = `\`ds models\` lists the cache. Its folder would be ${toFolderName(name)}.`;
  return new DsError({ code: 'DS_HUB', op: name, expected, got, hint });
}

// Lists the models of the cache, and removes them. The files are the state: nothing else is read.
import { randomBytes } from 'node:crypto';
import { lstat, readdir, readFile, readlink, rename, rm, rmdir, stat } from 'node:fs/promises';
import { basename, dirname, join, relative, sep } from 'node:path';

import { ifThere, orDsError } from '../checkpoint/file-error.js';
import { DsError } from '../errors.js';
import { readOptions } from '../runtime/options.js';
import { isLocked } from './blob-lock.js';
import { CachedModel, folderName } from './cache.js';
import { hubSettings } from './environment.js';
import { REVISION, type RevisionOptions } from './local-folder.js';
import { isCommit, isModelName, printable, requireModelName, requireRevision } from './names.js';

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
  /** Bytes of its files. Other revisions may share them. */
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

/** Lists the models of the cache by name. Rejects with DS_IO if it cannot be read. */
export async function models(): Promise<CachedModelInfo[]> {
  const { cache } = hubSettings();
  const names = (await ifThere(cache, () => readdir(cache))) ?? [];
  const found: CachedModelInfo[] = [];
  for (const entry of names.filter((name) => name.startsWith('models--'))) {
    const name = entry.slice('models--'.length).replace('--', '/');
    const model = new CachedModel(cache, name);
    const status = await ifThere(model.folder, () => lstat(model.folder));
    if (isModelName(name) && status?.isDirectory()) found.push(await modelInfo(model));
  }
  return found.sort((a, b) => (a.name < b.name ? -1 : 1));
}

/**
 * Removes a model from the cache, or only one revision and the files that no other revision has.
 * Resolves with the number of freed bytes. Rejects with DS_HUB if the cache lacks it, or while a
 * process downloads it; DS_IO.
 */
export async function remove(name: string, given: RevisionOptions = {}): Promise<number> {
  requireModelName('remove', name);
  const { revision } = readOptions('remove', given, REVISION);
  if (revision !== undefined) requireRevision('remove revision', revision);
  const { cache } = hubSettings();
  const model = new CachedModel(cache, name);
  const status = await ifThere(model.folder, () => lstat(model.folder));
  if (!status?.isDirectory()) throw notCachedError(name, cache, `no model ${printable(name)}`);
  const info = await modelInfo(model);
  return orDsError(model.folder, async () => {
    await requireIdle(model);
    const removed = revision === undefined ? null : revisionOf(model, info, revision);
    if (!removed || info.revisions.length === 1) return removeAll(model, info);
    await removeRevision(model, removed);
    return info.bytes - (await modelInfo(model)).bytes;
  });
}

function revisionOf(
  model: CachedModel,
  { revisions }: CachedModelInfo,
  revision: string,
): CachedRevision {
  const commit = model.commitOf(revision);
  const found = revisions.find((revision) => revision.commit === commit);
  if (found) return found;
  throw notCachedError(model.name, model.cache, `no revision ${printable(revision)} of it`);
}

/** The folder disappears at once, so that no process reads a half of it. */
async function removeAll(model: CachedModel, info: CachedModelInfo): Promise<number> {
  const hidden = join(model.cache, `.removed-${randomBytes(6).toString('hex')}`);
  await rename(model.folder, hidden);
  await rm(hidden, { recursive: true, force: true });
  const locks = dirname(model.lock('x'));
  await rm(locks, { recursive: true, force: true });
  return info.bytes + info.unfinished;
}

async function removeRevision(model: CachedModel, removed: CachedRevision): Promise<void> {
  const { commit, folder, refs } = removed;
  const blobNames = await blobsOf(model, folder);
  for (const ref of refs) await removeRef(model, ref);
  const hidden = join(model.folder, `.removed-${randomBytes(6).toString('hex')}`);
  await rename(folder, hidden);
  await rm(hidden, { recursive: true, force: true });
  await rm(dirname(model.absent(commit, 'x')), { recursive: true, force: true });
  const kept = new Set<string>();
  for (const text of await namesIn(dirname(folder))) {
    for (const blob of await blobsOf(model, join(dirname(folder), text))) kept.add(blob);
  }
  for (const blob of blobNames) {
    if (!kept.has(blob)) await rm(model.blob(blob), { force: true });
  }
}

async function removeRef(model: CachedModel, ref: string): Promise<void> {
  await rm(model.ref(ref), { force: true });
  const top = dirname(model.ref('x'));
  for (let at = dirname(model.ref(ref)); at !== top; at = dirname(at)) {
    await rmdir(at).catch(() => {}); // Other refs of the folder stay.
  }
}

/** Throws DS_HUB while a process downloads a file of the model. */
async function requireIdle(model: CachedModel): Promise<void> {
  const locks = dirname(model.lock('x'));
  for (const name of await namesIn(locks)) {
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

async function modelInfo(model: CachedModel): Promise<CachedModelInfo> {
  const refs = await refsOf(model);
  const revisions: CachedRevision[] = [];
  const snapshots = join(model.folder, 'snapshots');
  for (const commit of (await namesIn(snapshots)).filter(isCommit).sort()) {
    const folder = model.snapshot(commit);
    const sizes = await sizesIn(folder);
    revisions.push({
      commit,
      folder,
      files: sizes.length,
      bytes: sum(sizes.map(({ bytes }) => bytes)),
      refs: refs.filter((ref) => ref.commit === commit).map(({ ref }) => ref),
    });
  }
  const blobs = await sizesIn(join(model.folder, 'blobs'));
  const isWhole = ({ name }: Size): boolean => /^[0-9a-f]{40}([0-9a-f]{24})?$/.test(name);
  const others = blobs.filter((blob) => !isWhole(blob));
  // Without links, as on Windows, the snapshots have the files.
  const ownSizes = [...blobs.filter(isWhole), ...(await sizesIn(snapshots))];
  return {
    name: model.name,
    folder: model.folder,
    revisions,
    bytes: sum([...new Map(ownSizes.map(({ id, bytes }) => [id, bytes])).values()]),
    unfinished: sum(others.map(({ allocated }) => allocated)),
    changed: Math.max(0, ...[...ownSizes, ...others].map(({ changed }) => changed)),
  };
}

/** The branches and tags with their commits. A ref may have slashes in its name. */
async function refsOf(model: CachedModel): Promise<{ ref: string; commit: string }[]> {
  const top = dirname(model.ref('x'));
  const found: { ref: string; commit: string }[] = [];
  for (const path of await filesBelow(top)) {
    const text = await readFile(path, 'utf8').catch(() => '');
    const ref = relative(top, path).split(sep).join('/');
    if (isCommit(text.trim())) found.push({ ref, commit: text.trim() });
  }
  return found.sort((a, b) => (a.ref < b.ref ? -1 : 1));
}

/** A file or the target of a link. */
interface Size {
  name: string;
  bytes: number;
  /** Bytes on the disk; an unfinished file has holes. */
  allocated: number;
  changed: number;
  /** Device and inode: links to one file have the same. */
  id: string;
}

async function sizesIn(folder: string): Promise<Size[]> {
  const sizes: Size[] = [];
  for (const path of await filesBelow(folder)) {
    const found = await stat(path).catch(() => null);
    if (!found?.isFile()) continue;
    const { size, blocks, mtimeMs, dev, ino } = found;
    const allocated = Math.min(size, 512 * blocks);
    const id = `${dev}:${ino}`;
    sizes.push({ name: basename(path), bytes: size, allocated, changed: mtimeMs, id });
  }
  return sizes;
}

/** Names of the blobs that the links of a snapshot lead to. */
async function blobsOf(model: CachedModel, folder: string): Promise<Set<string>> {
  const blobs = new Set<string>();
  for (const path of await filesBelow(folder)) {
    const target = await readlink(path).catch(() => null);
    if (target === null) continue;
    const place = join(dirname(path), target);
    if (dirname(place) === dirname(model.blob('x'))) blobs.add(basename(place));
  }
  return blobs;
}

/** Paths of the files and links below a folder. Links to folders are not followed. */
async function filesBelow(folder: string): Promise<string[]> {
  const entries = await readdir(folder, { withFileTypes: true }).catch(() => []);
  const found: string[] = [];
  for (const entry of entries) {
    const path = join(folder, entry.name);
    if (entry.isDirectory()) found.push(...(await filesBelow(path)));
    else found.push(path);
  }
  return found;
}

const namesIn = (folder: string): Promise<string[]> => readdir(folder).catch(() => []);

const sum = (numbers: readonly number[]): number =>
  numbers.reduce((all, number) => all + number, 0);

function notCachedError(name: string, cache: string, got: string): DsError {
  const expected = `a model in the cache ${cache}`;
  const hint = `${folderName(name)} would be its folder. \`ds models\` lists the cache.`;
  return new DsError({ code: 'DS_HUB', op: name, expected, got, hint });
}

// pull(): downloads a model of the hub into the cache and returns its folder.

import { randomBytes } from 'node:crypto';
import { readlink, rename, rm, stat, statfs, symlink, writeFile } from 'node:fs/promises';
import { dirname, join, relative } from 'node:path';
import { orDsError } from '../checkpoint/file-error.js';
import { makeFolder } from '../checkpoint/make-folder.js';
import { DsError } from '../errors.js';
import { valueError } from '../runtime/input-errors.js';
import { namesOf, readOptions } from '../runtime/options.js';
import { requireOneOf } from '../runtime/require-type.js';
import { errorMessage } from '../runtime/system-error.js';
import { whenAborted } from '../runtime/when-aborted.js';
import { CachedModel } from './cache.js';
import {
  chooseByPatterns,
  chooseFiles,
  FILE_SETS,
  type FileSet,
  isComplete,
  listIndexedWeights,
  listMissingFiles,
  TEMPLATES,
} from './choice.js';
import { Slots } from './concurrency-limit.js';
import { DownloadProgress, formatDecimalBytes } from './download-progress.js';
import { type HubSettings, readHubSettings } from './environment.js';
import { isTemporary } from './hub-error.js';
import { fetchCommit, type ListedFile, listFiles } from './listing.js';
import { isCommit, requireModelName, requireRevision, toPrintable } from './names.js';
import type { HubCall } from './request.js';
import { fetchBlob, hasBlob, type Transfers, toPartialPath } from './transfer.js';

/** Options of pull(). */
export interface PullOptions {
  /** Branch, tag or commit. Default: "main". */
  revision?: string;
  /** The set of files to fetch. Default: "model". "config" means only config.json. */
  files?: FileSet;
  /**
   * Patterns of files to fetch instead of a set: "*" and "?" as in a shell. "*" also matches "/".
   */
  include?: string | readonly string[];
  /**
   * Whether to print progress to stderr. Default: true, unless HF_HUB_DISABLE_PROGRESS_BARS is set.
   */
  progress?: boolean;
  /** Stops the download; a later call resumes it. */
  signal?: AbortSignal;
}

/** Maximum number of connections, and of files that are downloaded at the same time. */
const [CONNECTIONS, FILES] = [8, 4];
const MAIN = 'main';

/**
 * Downloads a model of the Hugging Face hub into the cache, and resolves with its folder there.
 * Fetches only missing files: configuration, tokenizer and safetensors of one set of weights.
 * Formats that run code (.bin, .pt) are never fetched.
 *
 * Environment: HF_HUB_CACHE, HF_HOME, HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE. Rejects with DS_HUB if
 * the hub refuses or cannot be reached, DS_IO if the cache cannot be written, and DS_ARGUMENT for
 * invalid options. Source: huggingface_hub's snapshot_download.
 */
export async function pull(name: string, given: PullOptions = {}): Promise<string> {
  requireModelName('pull', name);
  const options = readOptions('pull', given, namesOf.PullOptions);
  return pullWith(readHubSettings(), name, options);
}

/** @internal Downloads as pull() does, with settings in place of the environment. */
export async function pullWith(
  settings: HubSettings,
  name: string,
  options: PullOptions,
): Promise<string> {
  const { revision = MAIN, files = 'model', progress = settings.progress } = options;
  requireRevision('pull revision', revision);
  requireOneOf('pull files', files, FILE_SETS);
  const patterns = readPatterns(options.include);
  const signal = options.signal ?? new AbortController().signal;
  const call: HubCall = { settings, signal, model: { name, revision } };
  const model = new CachedModel(settings.cache, name);
  const cachedFolder = patterns ? null : findCachedModel(model, revision, files, settings.offline);
  if (cachedFolder) return cachedFolder;
  if (settings.offline) throw offlineError(model, revision, files);
  const bar = new DownloadProgress(name, progress ? process.stderr : null);
  try {
    const commit = isCommit(revision) ? revision : await fetchCommit(call);
    const snapshot = model.snapshotFolder(commit);
    if (patterns || !isComplete(model, commit, files)) {
      await fetchFiles(call, model, { commit, files, patterns, bar });
    }
    if (commit !== revision) await writeRef(model, revision, commit);
    bar.finish(true);
    return snapshot;
  } catch (error) {
    bar.finish(false);
    const commit = patterns || !isTemporary(error) ? null : model.readCommit(revision);
    if (commit === null || listMissingFiles(model, commit, files).length > 0) throw error;
    const text = `${errorMessage(error)} Using the cached commit ${commit.slice(0, 8)}.`;
    process.emitWarning(text, { type: 'DsWarning', code: 'DS_HUB' });
    return model.snapshotFolder(commit);
  }
}

/**
 * Returns the cached folder if no request is needed: `revision` is a commit that the cache has
 * completely, or requests are disabled. Returns null otherwise.
 */
function findCachedModel(
  model: CachedModel,
  revision: string,
  need: FileSet,
  isOffline: boolean,
): string | null {
  const commit = isOffline || isCommit(revision) ? model.readCommit(revision) : null;
  if (commit === null) return null;
  const isUsable = isOffline
    ? listMissingFiles(model, commit, need).length === 0
    : isComplete(model, commit, need);
  return isUsable ? model.snapshotFolder(commit) : null;
}

interface PullTask {
  readonly commit: string;
  readonly files: FileSet;
  readonly patterns: readonly string[] | null;
  readonly bar: DownloadProgress;
}

async function fetchFiles(call: HubCall, model: CachedModel, task: PullTask): Promise<void> {
  const { commit, files, patterns, bar } = task;
  const { name } = call.model;
  const transfers: Transfers = {
    call,
    model,
    commit,
    slots: new Slots(CONNECTIONS),
    onDownloaded: (bytes) => bar.addDownloaded(bytes),
    onCached: (bytes) => bar.addCached(bytes),
    onWait: ({ path }) =>
      bar.printLine(`${name}: another process downloads ${path}, waiting for it`),
  };
  const listing = await listFiles(call, commit, { recursive: patterns !== null });
  const listed = listing.files;
  if (patterns) return fetchSet(transfers, chooseByPatterns(name, patterns, listed), bar);
  const choice = chooseFiles(name, files, listed);
  const hasTemplates = files !== 'config' && listing.folders.includes(TEMPLATES);
  const templates = hasTemplates
    ? (await listFiles(call, commit, { folder: TEMPLATES })).files
    : [];
  const jinja = templates.filter(({ path }) => path.endsWith('.jinja'));
  await fetchSet(transfers, [...choice.small, ...jinja], bar);
  const snapshot = model.snapshotFolder(commit);
  const indexed = choice.isIndexed ? listIndexedWeights(name, snapshot, listed) : [];
  await fetchSet(transfers, [...choice.weights, ...indexed], bar);
  for (const path of choice.absent) await writeAbsent(model, commit, path);
}

/**
 * Fetches the files that are missing in the snapshot, and links them. A failure stops the other
 * files.
 */
async function fetchSet(
  transfers: Transfers,
  files: readonly ListedFile[],
  bar: DownloadProgress,
): Promise<void> {
  const { model, commit, call } = transfers;
  const missing: ListedFile[] = [];
  for (const file of files) {
    const path = join(model.snapshotFolder(commit), file.path);
    const stats = await stat(path).catch(() => null);
    if (stats?.isFile() && stats.size === file.bytes) continue;
    missing.push(file);
    bar.addTotal(file.bytes);
  }
  await requireSpace(call, model, missing);
  const controller = new AbortController();
  const removeListener = whenAborted(call.signal, () => controller.abort(call.signal.reason));
  const abortableTransfers = { ...transfers, call: { ...call, signal: controller.signal } };
  const queue = [...missing];
  const failures: unknown[] = [];
  const worker = async (): Promise<void> => {
    for (let file = queue.shift(); file; file = queue.shift()) {
      await fetchBlob(abortableTransfers, file);
      await linkFile(model, commit, file);
    }
  };
  await Promise.all(
    Array.from({ length: FILES }, () =>
      worker().catch((error: unknown) => {
        failures.push(error);
        controller.abort(error);
      }),
    ),
  );
  removeListener();
  if (failures.length > 0) throw failures[0];
}

/** Throws DS_IO if the missing files need more than the free space of the disk. */
async function requireSpace(
  call: HubCall,
  model: CachedModel,
  files: readonly ListedFile[],
): Promise<void> {
  let needed = 0;
  for (const file of files) {
    if (await hasBlob(model, file)) continue;
    const partial = await stat(toPartialPath(model.blobPath(file.oid))).catch(() => null);
    needed += Math.max(0, file.bytes - 512 * (partial?.blocks ?? 0));
  }
  if (needed === 0) return;
  await orDsError(model.folder, () => makeFolder(model.folder));
  const { bavail, bsize } = await statfs(model.folder);
  const free = bavail * bsize;
  if (needed <= free) return;
  throw new DsError({
    code: 'DS_IO',
    op: call.model.name,
    expected: `${formatDecimalBytes(needed)} of free space in ${model.cache}`,
    got: formatDecimalBytes(free),
    hint: 'Remove models with `ds models`, or set HF_HUB_CACHE to a folder of a larger disk.',
  });
}

/**
 * Creates snapshots/COMMIT/FILE, a relative link to the blob. A rename replaces an earlier link
 * atomically.
 */
async function linkFile(model: CachedModel, commit: string, file: ListedFile): Promise<void> {
  const path = join(model.snapshotFolder(commit), file.path);
  const target = relative(dirname(path), model.blobPath(file.oid));
  await orDsError(path, async () => {
    if ((await readlink(path).catch(() => null)) === target) return;
    await makeFolder(dirname(path));
    const temporary = `${model.blobPath(file.oid)}.${randomBytes(6).toString('hex')}.link`;
    await symlink(target, temporary);
    try {
      await rename(temporary, path);
    } catch (error) {
      await rm(temporary, { force: true });
      throw error;
    }
  });
}

/** Writes a small file atomically. */
async function writeWhole(path: string, text: string): Promise<void> {
  await orDsError(path, async () => {
    await makeFolder(dirname(path));
    const temporary = `${path}.${randomBytes(6).toString('hex')}.tmp`;
    await writeFile(temporary, text);
    await rename(temporary, path);
  });
}

async function writeRef(model: CachedModel, revision: string, commit: string): Promise<void> {
  if (model.readCommit(revision) === commit) return;
  await writeWhole(model.refPath(revision), commit);
}

async function writeAbsent(model: CachedModel, commit: string, file: string): Promise<void> {
  if (model.hasOrLacks(commit, file)) return;
  await writeWhole(model.absentPath(commit, file), '');
}

/**
 * Returns the patterns as a list; null without patterns. Throws DS_ARGUMENT unless they are texts
 * of 1 to 256 characters.
 */
function readPatterns(include: PullOptions['include']): readonly string[] | null {
  if (include === undefined) return null;
  const list = typeof include === 'string' ? [include] : include;
  const isList = Array.isArray(list) && list.length > 0;
  if (
    isList &&
    list.every((item) => typeof item === 'string' && item !== '' && item.length <= 256)
  ) {
    return list;
  }
  throw valueError('pull include', 'patterns of file names, such as "*.json"', include);
}

function offlineError(model: CachedModel, revision: string, need: FileSet): DsError {
  const commit = model.readCommit(revision);
  const missing = commit === null ? [] : listMissingFiles(model, commit, need);
  const what = `revision ${toPrintable(revision)}`;
  return new DsError({
    code: 'DS_HUB',
    op: model.name,
    expected: `a folder on this machine, or a model in the cache ${model.cache}`,
    got: commit === null ? `no ${what}` : `${what} without ${missing.slice(0, 3).join(', ')}`,
    hint: 'HF_HUB_OFFLINE is set: unset it, or run `ds pull` once with a network.',
  });
}

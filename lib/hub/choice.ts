// Chooses the files of a repository that a model, a tokenizer, a configuration or an adapter needs.

import { readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { DsError } from '../errors.js';
import { isObject } from '../runtime/is-object.js';
import { parseJson } from '../runtime/parse-json.js';
import { required } from '../runtime/required.js';
import type { CachedModel } from './cache.js';
import type { ListedFile } from './listing.js';
import { toPrintable } from './names.js';

/** The sets of files that pull() fetches. */
export const FILE_SETS = ['model', 'tokenizer', 'config', 'adapter'] as const;

/** A set of files to fetch. In a repository without a model, "model" means the adapter. */
export type FileSet = (typeof FILE_SETS)[number];

const CONFIG = 'config.json';
const [SINGLE_FILE, INDEX] = ['model.safetensors', 'model.safetensors.index.json'];
const ADAPTER = ['adapter_config.json', 'adapter_model.safetensors'] as const;
const TOKENIZER = 'tokenizer.json';
/** Files that a tokenizer reads if they exist. */
const TOKENIZER_EXTRAS = [
  'tokenizer_config.json',
  'special_tokens_map.json',
  'chat_template.jinja',
];
const GENERATION = 'generation_config.json';
/** Folder of additional chat templates. */
export const TEMPLATES = 'additional_chat_templates';
/** Maximum number of bytes of an index. The index of 10,000 tensors has 1 MB. */
const INDEX_BYTES = 64 * 2 ** 20;
/** Extensions of formats that run code when Python reads them. They are never fetched. */
const PICKLE = /\.(bin|pt|pth|ckpt|pkl|pickle|joblib|dill|msgpack|h5|npy|npz)$/i;

/** Small files of a set: files that must exist, and files to fetch if they exist. */
interface FileRules {
  readonly required: readonly string[];
  readonly optional: readonly string[];
}

const SMALL_FILES: Readonly<Record<FileSet, FileRules>> = {
  model: { required: [CONFIG], optional: [GENERATION, TOKENIZER, ...TOKENIZER_EXTRAS] },
  tokenizer: { required: [TOKENIZER], optional: TOKENIZER_EXTRAS },
  config: { required: [CONFIG], optional: [] },
  adapter: { required: ADAPTER, optional: [TOKENIZER, ...TOKENIZER_EXTRAS] },
};

/** The files of a repository to fetch. */
interface Choice {
  /** Configuration, tokenizer and index: small files, fetched first. */
  readonly small: readonly ListedFile[];
  /** Weights that are known without an index. */
  readonly weights: readonly ListedFile[];
  /** Whether INDEX names the weights. */
  readonly isIndexed: boolean;
  /** Optional files that are missing in the commit. */
  readonly absent: readonly string[];
}

/** Chooses from the top folder of a repository. Throws DS_HUB if required files are missing. */
export function chooseFiles(name: string, need: FileSet, listed: readonly ListedFile[]): Choice {
  const files = new Map(listed.map((file) => [file.path, file]));
  const set = chooseFileSet(need, (path) => files.has(path));
  const { required: requiredPaths, optional } = SMALL_FILES[set];
  const missing = requiredPaths.find((path) => !files.has(path));
  if (missing !== undefined) throw missingFileError(name, missing, listed);
  const isModel = set === 'model';
  const isIndexed = isModel && files.has(INDEX);
  if (isModel && !isIndexed && !files.has(SINGLE_FILE))
    throw missingFileError(name, SINGLE_FILE, listed);
  const paths = [...requiredPaths, ...optional, ...(isIndexed ? [INDEX] : [])];
  const chosen = paths.flatMap((path) => files.get(path) ?? []);
  const isWeight = ({ path }: ListedFile): boolean => path.endsWith('.safetensors');
  const singleFile = isModel && !isIndexed ? [required(files.get(SINGLE_FILE))] : [];
  return {
    small: chosen.filter((file) => !isWeight(file)),
    weights: [...chosen.filter(isWeight), ...singleFile],
    isIndexed,
    absent: optional.filter((path) => !files.has(path)),
  };
}

/**
 * Returns "adapter" if a model is needed but the folder has an adapter and no model; otherwise
 * `need`.
 */
function chooseFileSet(need: FileSet, has: (path: string) => boolean): FileSet {
  const isAdapter = need === 'model' && has(ADAPTER[0]) && !has(SINGLE_FILE) && !has(INDEX);
  return isAdapter ? 'adapter' : need;
}

/**
 * Returns the weights that the snapshot's index names. A model.safetensors outside the index takes
 * precedence, as for readers of folders. Throws DS_HUB for a damaged index, or if the repository
 * lacks a file of it.
 */
export function listIndexedWeights(
  name: string,
  snapshot: string,
  listed: readonly ListedFile[],
): ListedFile[] {
  const files = new Map(listed.map((file) => [file.path, file]));
  const names = readIndexNames(snapshot);
  if (names === null) throw damagedError(name, `a "weight_map" in ${INDEX}`, 'other contents');
  const singleFile = files.get(SINGLE_FILE);
  if (singleFile && !names.includes(SINGLE_FILE)) return [singleFile];
  return names.map((path) => {
    const file = files.get(path);
    if (file && path.endsWith('.safetensors')) return file;
    throw damagedError(name, `the files that ${INDEX} names`, `no ${toPrintable(path)}`);
  });
}

/** Returns the file names in a snapshot's index; null if it is missing or damaged. */
function readIndexNames(snapshot: string): string[] | null {
  try {
    const path = join(snapshot, INDEX);
    if (statSync(path).size > INDEX_BYTES) return null;
    const index = parseJson(readFileSync(path, 'utf8'));
    const map = isObject(index) ? index.weight_map : null;
    const names = isObject(map) ? [...new Set(Object.values(map))] : [];
    const isList = names.length > 0 && names.every((name) => typeof name === 'string');
    return isList ? names : null;
  } catch {
    return null;
  }
}

/** Chooses files by patterns with "*" and "?". Throws DS_HUB if no safe file matches. */
export function chooseByPatterns(
  name: string,
  patterns: readonly string[],
  listed: readonly ListedFile[],
): ListedFile[] {
  const rules = patterns.map(toMatcher);
  const matched = listed.filter(({ path }) => rules.some((rule) => rule.test(path)));
  const chosen = matched.filter(({ path }) => !PICKLE.test(path));
  if (chosen.length > 0) return chosen;
  const [pickle] = matched;
  throw new DsError({
    code: 'DS_HUB',
    op: name,
    expected: `files that match ${patterns.join(' ')}`,
    got: pickle ? `${toPrintable(pickle.path)}, a pickle` : `${listed.length} other files`,
    hint: pickle ? 'Formats that run code are never fetched.' : 'Quote patterns in the shell.',
  });
}

/** Converts a pattern by the rules of Python's fnmatch: "*" also matches "/". */
function toMatcher(pattern: string): RegExp {
  const source = pattern.replaceAll(/[\\^$.|+()[\]{}*?]/g, (text) =>
    text === '*' ? '.*' : text === '?' ? '.' : `\\${text}`,
  );
  return new RegExp(`^${source}${pattern.endsWith('/') ? '.*' : ''}$`, 's');
}

/** Returns the required files that are missing in a snapshot. */
export function listMissingFiles(model: CachedModel, commit: string, need: FileSet): string[] {
  const has = (path: string): boolean => model.has(commit, path);
  const set = chooseFileSet(need, has);
  const missing = SMALL_FILES[set].required.filter((path) => !has(path));
  if (set !== 'model' || has(SINGLE_FILE)) return missing;
  if (!has(INDEX)) return [...missing, SINGLE_FILE];
  const names = readIndexNames(model.snapshotFolder(commit)) ?? [INDEX];
  return [...missing, ...names.filter((path) => !has(path))];
}

/** Returns whether each file of a set is in the snapshot, or marked as absent. */
export function isComplete(model: CachedModel, commit: string, need: FileSet): boolean {
  if (listMissingFiles(model, commit, need).length > 0) return false;
  const set = chooseFileSet(need, (path) => model.has(commit, path));
  return SMALL_FILES[set].optional.every((path) => model.hasOrLacks(commit, path));
}

function missingFileError(name: string, missing: string, listed: readonly ListedFile[]): DsError {
  const paths = listed.map(({ path }) => path);
  const other = paths.find((path) => PICKLE.test(path) || path.endsWith('.gguf'));
  const isWeight = missing.endsWith('.safetensors');
  const got =
    isWeight && other ? toPrintable(other) : paths.slice(0, 6).map(toPrintable).join(', ');
  const hint = isWeight
    ? 'Only safetensors are read. Look for a converted copy, or another revision of the model.'
    : 'Check the name: the repository may hold another kind of model.';
  const expected = `a repository with ${missing}`;
  return new DsError({ code: 'DS_HUB', op: name, expected, got: got || 'no file', hint });
}

function damagedError(name: string, expected: string, got: string): DsError {
  const hint = 'The repository is damaged: try another revision.';
  return new DsError({ code: 'DS_HUB', op: name, expected, got, hint });
}

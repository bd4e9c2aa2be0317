// Which files of a repository a model, a tokenizer, a configuration or an adapter needs.

import { readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { DsError } from '../errors.js';
import { isObject } from '../runtime/is-object.js';
import { parseJson } from '../runtime/parse-json.js';
import { required } from '../runtime/required.js';
import type { CachedModel } from './cache.js';
import type { ListedFile } from './listing.js';
import { printable } from './names.js';

/** A set of files. In a repository without a model, "model" is the adapter. */
export type FileSet = 'model' | 'tokenizer' | 'config' | 'adapter';

export const CONFIG = 'config.json';
const [WHOLE, INDEX] = ['model.safetensors', 'model.safetensors.index.json'];
const ADAPTER = ['adapter_config.json', 'adapter_model.safetensors'] as const;
const TOKENIZER = 'tokenizer.json';
/** Files that a tokenizer reads if they exist. */
const BESIDE_TOKENIZER = [
  'tokenizer_config.json',
  'special_tokens_map.json',
  'chat_template.jinja',
];
const GENERATION = 'generation_config.json';
/** Folder of further chat templates. */
export const TEMPLATES = 'additional_chat_templates';
/** Bytes of an index; that of 10,000 tensors has 1 MB. */
const INDEX_BYTES = 64 * 2 ** 20;
/** Formats that run code when Python reads them. They are never fetched. */
const PICKLE = /\.(bin|pt|pth|ckpt|pkl|pickle|joblib|dill|msgpack|h5|npy|npz)$/i;

/** The files that must exist, and the files to take if they exist. */
interface FileRules {
  readonly required: readonly string[];
  readonly optional: readonly string[];
}

const SMALL: Readonly<Record<FileSet, FileRules>> = {
  model: { required: [CONFIG], optional: [GENERATION, TOKENIZER, ...BESIDE_TOKENIZER] },
  tokenizer: { required: [TOKENIZER], optional: BESIDE_TOKENIZER },
  config: { required: [CONFIG], optional: [] },
  adapter: { required: ADAPTER, optional: [TOKENIZER, ...BESIDE_TOKENIZER] },
};

/** The files of a repository that serve a need. */
export interface Choice {
  /** Configuration, tokenizer, index: small files, fetched first. */
  readonly small: readonly ListedFile[];
  /** Weights that no index names. */
  readonly weights: readonly ListedFile[];
  /** True: INDEX names the weights. */
  readonly isIndexed: boolean;
  /** Optional files that the commit lacks. */
  readonly absent: readonly string[];
}

/** Chooses from the top folder of a repository. Throws DS_HUB if it cannot serve the need. */
export function choose(name: string, need: FileSet, listed: readonly ListedFile[]): Choice {
  const files = new Map(listed.map((file) => [file.path, file]));
  const served = servedNeed(need, (path) => files.has(path));
  const { required: needed, optional } = SMALL[served];
  const missing = needed.find((path) => !files.has(path));
  if (missing !== undefined) throw without(name, missing, listed);
  const isWhole = served === 'model';
  const isIndexed = isWhole && files.has(INDEX);
  if (isWhole && !isIndexed && !files.has(WHOLE)) throw without(name, WHOLE, listed);
  const wanted = [...needed, ...optional, ...(isIndexed ? [INDEX] : [])];
  const found = wanted.flatMap((path) => files.get(path) ?? []);
  const isWeight = ({ path }: ListedFile): boolean => path.endsWith('.safetensors');
  const whole = isWhole && !isIndexed ? [required(files.get(WHOLE))] : [];
  return {
    small: found.filter((file) => !isWeight(file)),
    weights: [...found.filter(isWeight), ...whole],
    isIndexed,
    absent: optional.filter((path) => !files.has(path)),
  };
}

/** Where a folder has an adapter and no model, the adapter serves the need of a model. */
function servedNeed(need: FileSet, has: (path: string) => boolean): FileSet {
  const isAdapter = need === 'model' && has(ADAPTER[0]) && !has(WHOLE) && !has(INDEX);
  return isAdapter ? 'adapter' : need;
}

/**
 * Returns the weights of an index, which is in the snapshot. As for readers of folders, a
 * model.safetensors that the index does not name comes before the index. Throws DS_HUB.
 */
export function indexedWeights(
  name: string,
  snapshot: string,
  listed: readonly ListedFile[],
): ListedFile[] {
  const files = new Map(listed.map((file) => [file.path, file]));
  const names = namesInIndex(snapshot);
  if (names === null) throw damagedError(name, `a "weight_map" in ${INDEX}`, 'other contents');
  const whole = files.get(WHOLE);
  if (whole && !names.includes(WHOLE)) return [whole];
  return names.map((path) => {
    const file = files.get(path);
    if (file && path.endsWith('.safetensors')) return file;
    throw damagedError(name, `the files that ${INDEX} names`, `no ${printable(path)}`);
  });
}

/** Returns the file names of a snapshot's index; null if it is missing or damaged. */
function namesInIndex(snapshot: string): string[] | null {
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

/** Chooses by patterns with "*" and "?". Throws DS_HUB if nothing safe matches. */
export function chooseByPatterns(
  name: string,
  patterns: readonly string[],
  listed: readonly ListedFile[],
): ListedFile[] {
  const rules = patterns.map(matcher);
  const matched = listed.filter(({ path }) => rules.some((rule) => rule.test(path)));
  const chosen = matched.filter(({ path }) => !PICKLE.test(path));
  if (chosen.length > 0) return chosen;
  const [pickle] = matched;
  throw new DsError({
    code: 'DS_HUB',
    op: name,
    expected: `files that match ${patterns.join(' ')}`,
    got: pickle ? `${printable(pickle.path)}, a pickle` : `${listed.length} other files`,
    hint: pickle ? 'Formats that run code are never fetched.' : 'Quote patterns in the shell.',
  });
}

/** Returns a matcher with the rules of Python's fnmatch: "*" also matches "/". */
function matcher(pattern: string): RegExp {
  const source = pattern.replaceAll(/[\\^$.|+()[\]{}*?]/g, (text) =>
    text === '*' ? '.*' : text === '?' ? '.' : `\\${text}`,
  );
  return new RegExp(`^${source}${pattern.endsWith('/') ? '.*' : ''}$`, 's');
}

/** Returns the required files that a snapshot lacks. */
export function missingFiles(model: CachedModel, commit: string, need: FileSet): string[] {
  const has = (path: string): boolean => model.has(commit, path);
  const served = servedNeed(need, has);
  const missing = SMALL[served].required.filter((path) => !has(path));
  if (served !== 'model' || has(WHOLE)) return missing;
  if (!has(INDEX)) return [...missing, WHOLE];
  const names = namesInIndex(model.snapshot(commit)) ?? [INDEX];
  return [...missing, ...names.filter((path) => !has(path))];
}

/** Returns true if each file for a need is in the snapshot, or marked as absent. */
export function isComplete(model: CachedModel, commit: string, need: FileSet): boolean {
  if (missingFiles(model, commit, need).length > 0) return false;
  const served = servedNeed(need, (path) => model.has(commit, path));
  return SMALL[served].optional.every((path) => model.knows(commit, path));
}

function without(name: string, missing: string, listed: readonly ListedFile[]): DsError {
  const paths = listed.map(({ path }) => path);
  const other = paths.find((path) => PICKLE.test(path) || path.endsWith('.gguf'));
  const isWeight = missing.endsWith('.safetensors');
  const got = isWeight && other ? printable(other) : paths.slice(0, 6).map(printable).join(', ');
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

// Detects folders with an adapter but no model, and finds their base model.
import { existsSync, readFileSync, statSync } from 'node:fs';
import { join, resolve } from 'node:path';
import type { JsonObject, JsonValue } from '../../types/json.js';
import { DsError } from '../errors.js';
import { findOrPullFolder } from '../hub/local-folder.js';
import { isRemote } from '../hub/names.js';
import { parseJson } from '../runtime/parse-json.js';

const CONFIG = 'adapter_config.json';
/** Weight files of a whole model. A model folder has one of them and a config.json. */
const WHOLE = ['model.safetensors', 'pytorch_model.bin'].flatMap((name) => [
  name,
  `${name}.index.json`,
]);

/** A folder with an adapter but no model. */
export interface AdapterFolder {
  readonly path: string;
  /** The base model in its adapter_config.json; null if the file has no name. */
  readonly base: string | null;
}

/**
 * Returns the adapter of `dir`; null if `dir` has no adapter, or has a model too. A config.json
 * without weights is no model: some trainers leave it next to adapters.
 */
export function adapterFolder(dir: string): AdapterFolder | null {
  const file = join(dir, CONFIG);
  if (!isFile(file) || modelFilesIn(dir).length > 0) return null;
  return { path: dir, base: baseIn(file) };
}

/** Returns the weight files of a whole model in `dir`. The list is empty without a config.json. */
export function modelFilesIn(dir: string): string[] {
  const isThere = (name: string): boolean => existsSync(join(dir, name));
  return isThere('config.json') ? WHOLE.filter(isThere) : [];
}

/**
 * @internal Returns the folder of an adapter's base model. A local folder takes precedence over a
 * name on the hub.
 */
export async function findBaseFolder(adapter: AdapterFolder): Promise<string> {
  const { base } = adapter;
  if (base === null || findBase(adapter) !== null || !isRemote(base)) return requireBase(adapter);
  return findOrPullFolder(adapter.path, base, { need: 'model' });
}

/**
 * Returns the folder or GGUF file of the base model. The name is a path relative to the working
 * directory or to the adapter's folder. Throws DS_CHECKPOINT if neither exists.
 */
export function requireBase(adapter: AdapterFolder): string {
  const folder = findBase(adapter);
  if (folder !== null) return folder;
  throw findLoneAdapter(adapter);
}

/** Returns the folder or GGUF file of the base model, or null. */
export function findBase({ path, base }: AdapterFolder): string | null {
  const paths = base === null ? [] : [resolve(base), resolve(path, base)];
  const folder = paths.find((name) => existsSync(name) && isModelPath(name));
  return folder === undefined || folder === resolve(path) ? null : folder;
}

const isModelPath = (path: string): boolean =>
  path.endsWith('.gguf') || statSync(path).isDirectory();

/** Returns the error for an adapter in place of a model. */
export function findLoneAdapter({ path, base }: AdapterFolder): DsError {
  const model = base === null ? 'an unnamed model' : JSON.stringify(base);
  return new DsError({
    code: 'DS_CHECKPOINT',
    op: path,
    expected: 'the folder of a whole model',
    got: `an adapter of PEFT for ${model}`,
    hint: `Open the base model and call peft.loadAdapter(model, folder). To store both in one folder, call peft.merge(model), peft.unload(model) and nn.saveWeights(model, dir). ds serve, ds chat and initInference() load both if "base_model_name_or_path" of ${CONFIG} is a folder or a name on the hub.`,
  });
}

const isFile = (path: string): boolean => existsSync(path) && statSync(path).isFile();

/** Returns PEFT's task of the adapter in `dir`, such as "SEQ_CLS"; null without one. */
export const adapterTask = (dir: string): string | null => textIn(join(dir, CONFIG), 'task_type');

/**
 * Returns the names of the modules that the adapter in `dir` replaces as a whole, such as a
 * classifier's head.
 */
export function savedModulesIn(dir: string): string[] {
  const modules = valueIn(join(dir, CONFIG), 'modules_to_save');
  return Array.isArray(modules) ? modules.map(String) : [];
}

const baseIn = (file: string): string | null => textIn(file, 'base_model_name_or_path');

function textIn(file: string, key: string): string | null {
  const text = valueIn(file, key);
  return typeof text === 'string' && text !== '' ? text : null;
}

/**
 * Returns a value of a JSON file; null if the file cannot be read, because loading the adapter
 * reports that error.
 */
function valueIn(file: string, key: string): JsonValue {
  try {
    return (parseJson(readFileSync(file, 'utf8')) as JsonObject)[key] ?? null;
  } catch {
    return null;
  }
}

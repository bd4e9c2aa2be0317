// A folder that holds an adapter and no model: whether one is, and what it was trained beside.
import { existsSync, readFileSync, statSync } from 'node:fs';
import { join, resolve } from 'node:path';
import type { JsonObject } from '../../types/json.js';
import { DsError } from '../errors.js';
import { parseJson } from '../runtime/parse-json.js';

const CONFIG = 'adapter_config.json';
/** Weights of a model, one of which lies beside its config.json. */
const WHOLE = ['model.safetensors', 'pytorch_model.bin'].flatMap((name) => [
  name,
  `${name}.index.json`,
]);

/** A folder with an adapter alone. */
export interface AdapterFolder {
  readonly path: string;
  /** The base model that its file names; null without a name. */
  readonly base: string | null;
}

/**
 * What `dir` says where it has the files of an adapter and no model, else null. A config.json
 * alone, which some trainers leave beside adapters, is no model.
 */
export function adapterFolder(dir: string): AdapterFolder | null {
  const file = join(dir, CONFIG);
  if (!isFile(file) || modelFilesIn(dir).length > 0) return null;
  return { path: dir, base: baseIn(file) };
}

/** Returns the weight files of a whole model in `dir`: none without a config.json. */
export function modelFilesIn(dir: string): string[] {
  const isThere = (name: string): boolean => existsSync(join(dir, name));
  return isThere('config.json') ? WHOLE.filter(isThere) : [];
}

/**
 * The folder of the model that the adapter was trained beside, a path from the working folder or
 * from the adapter's own. Throws DS_CHECKPOINT where neither is one.
 */
export function requireBase(adapter: AdapterFolder): string {
  const { path, base } = adapter;
  const places = base === null ? [] : [resolve(base), resolve(path, base)];
  const found = places.find((one) => existsSync(one) && statSync(one).isDirectory());
  if (found !== undefined && found !== resolve(path)) return found;
  throw adapterAlone(adapter);
}

/** The error where a model is wanted. */
export function adapterAlone({ path, base }: AdapterFolder): DsError {
  const model = base === null ? 'a model that it does not name' : JSON.stringify(base);
  return new DsError({
    code: 'DS_CHECKPOINT',
    op: path,
    expected: 'the folder of a whole model',
    got: `an adapter of PEFT, which was trained beside ${model}`,
    hint: `Open that model, then peft.loadAdapter(model, folder); peft.merge(model), peft.unload(model) and nn.saveWeights(model, dir) make one folder of both. ds serve, ds chat and initInference() do so by themselves where "base_model_name_or_path" of ${CONFIG} is a folder here.`,
  });
}

const isFile = (path: string): boolean => existsSync(path) && statSync(path).isFile();

/** What cannot be read is refused when the adapter is. */
function baseIn(file: string): string | null {
  try {
    const { base_model_name_or_path: base } = parseJson(readFileSync(file, 'utf8')) as JsonObject;
    return typeof base === 'string' && base !== '' ? base : null;
  } catch {
    return null;
  }
}

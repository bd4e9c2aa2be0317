// A model's folder as Hugging Face's transformers writes it: config.json, and safetensors in one file or in several.
import { readdir, readFile, stat } from 'node:fs/promises';

import type { JsonObject } from '../../types/json.js';
import { DsError } from '../errors.js';
import { cpu } from '../runtime/device.js';
import { held, Tensor } from '../tensor/index.js';
import { fileInside, isPlainName } from './folder.js';
import type { TensorEntry } from './header.js';
import { SafetensorsFile } from './safetensors-file.js';

export const CONFIG_FILE = 'config.json';
export const WEIGHTS_FILE = 'model.safetensors';
export const INDEX_FILE = 'model.safetensors.index.json';

const MAX_JSON_BYTES = 64 * 2 ** 20;

interface Home {
  file: SafetensorsFile;
  entry: TensorEntry;
}

/** Headers are read and compared with the index; values when asked for. */
export class PretrainedFolder {
  private constructor(
    readonly path: string,
    readonly config: JsonObject,
    private readonly homes: ReadonlyMap<string, Home>,
  ) {}

  /**
   * Throws DS_CHECKPOINT when the folder has no config.json or no safetensors, when they are damaged, or when the
   * index names a file outside the folder or a tensor that its file has not got.
   */
  static async open(path: string): Promise<PretrainedFolder> {
    await requireFolder(path);
    const config = await readJson(path, CONFIG_FILE);
    const files = await readdir(path);
    if (files.includes(INDEX_FILE)) {
      const index = await readJson(path, INDEX_FILE);
      return new PretrainedFolder(path, config, await openShards(path, index));
    }
    if (!files.includes(WEIGHTS_FILE)) throw noWeights(path, files);
    const file = await openFile(path, WEIGHTS_FILE);
    const homes = file.entries.map((entry) => [entry.name, { file, entry }] as const);
    return new PretrainedFolder(path, config, new Map(homes));
  }

  /** Every tensor. */
  get tensors(): ReadonlyMap<string, TensorEntry> {
    return new Map(Array.from(this.homes, ([name, { entry }]) => [name, entry]));
  }

  /** The values of a tensor on the CPU; the caller releases them. Throws DS_CHECKPOINT for an unknown name. */
  async read(name: string): Promise<Tensor> {
    const home = this.homes.get(name);
    if (!home) throw damaged(`${this.path}: ${name}`, 'this tensor', 'none of this name');
    const { file, entry } = home;
    const values = held(() => Tensor.empty(entry.shape, entry.dtype, cpu()));
    try {
      await file.readInto(entry, values);
      return values;
    } catch (error) {
      values.release();
      throw error;
    }
  }
}

async function requireFolder(path: string): Promise<void> {
  const found = await stat(path).catch((cause: Error) => cause);
  if (!(found instanceof Error) && found.isDirectory()) return;
  throw new DsError({
    code: 'DS_CHECKPOINT',
    op: path,
    expected: 'a folder with config.json and safetensors',
    got: found instanceof Error ? found.message : 'a file',
    hint: 'Nothing is downloaded: get a model of the Hugging Face hub by `hf download NAME --local-dir DIR` first.',
  });
}

async function openShards(path: string, index: JsonObject): Promise<Map<string, Home>> {
  const { weight_map: map } = index;
  const place = `${path}: ${INDEX_FILE}`;
  if (typeof map !== 'object' || map === null || Array.isArray(map)) {
    throw damaged(place, 'a "weight_map" of file names', 'something else');
  }
  for (const [name, file] of Object.entries(map)) {
    const good = typeof file === 'string' && isPlainName(file) && file.endsWith('.safetensors');
    if (good) continue;
    const expected = 'the name of a safetensors file in this folder';
    throw damaged(`${place}: ${name}`, expected, JSON.stringify(file)?.slice(0, 200) ?? 'nothing');
  }
  const opened = new Map<string, Map<string, Home>>();
  for (const name of new Set(Object.values(map) as string[])) {
    const file = await openFile(path, name);
    opened.set(name, new Map(file.entries.map((entry) => [entry.name, { file, entry }])));
  }
  const homes = new Map<string, Home>();
  for (const [name, file] of Object.entries(map)) {
    const home = opened.get(file as string)?.get(name);
    if (!home) throw damaged(`${path}/${file}: ${name}`, 'this tensor, as the index says', 'none');
    homes.set(name, home);
  }
  return homes;
}

async function openFile(path: string, name: string): Promise<SafetensorsFile> {
  return SafetensorsFile.open((await fileInside(path, name)).path);
}

async function readJson(folder: string, name: string): Promise<JsonObject> {
  const { path, bytes } = await fileInside(folder, name);
  if (bytes > MAX_JSON_BYTES) throw damaged(path, `at most ${MAX_JSON_BYTES} bytes`, `${bytes}`);
  const text = await readFile(path, 'utf8');
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (cause) {
    throw damaged(path, 'JSON', (cause as Error).message.slice(0, 200));
  }
  if (typeof value === 'object' && value !== null && !Array.isArray(value)) {
    return value as JsonObject;
  }
  throw damaged(path, 'a JSON object', 'other JSON');
}

function noWeights(path: string, files: readonly string[]): DsError {
  const pickled = files.find((name) => /\.(bin|pt|pth)$/.test(name));
  return new DsError({
    code: 'DS_CHECKPOINT',
    op: path,
    expected: `${WEIGHTS_FILE} or ${INDEX_FILE}`,
    got: pickled ? `${pickled}, a pickle of PyTorch` : 'neither',
    hint: 'In Python: model.save_pretrained(dir, safe_serialization=True).',
  });
}

function damaged(op: string, expected: string, got: string): DsError {
  const hint = 'The folder is damaged or incomplete.';
  return new DsError({ code: 'DS_CHECKPOINT', op, expected, got, hint });
}

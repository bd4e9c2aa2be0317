// Weights in safetensors as other programs and our exports leave them: one file, or several with an index.
import { readdir, readFile, stat } from 'node:fs/promises';
import { dirname, join } from 'node:path';

import type { JsonObject } from '../../types/json.js';
import { DsError } from '../errors.js';
import { cpu } from '../runtime/device.js';
import { held, Tensor } from '../tensor/index.js';
import { LATEST } from './directory.js';
import { fileInside, isPlainName } from './folder.js';
import type { TensorEntry } from './header.js';
import { MANIFEST } from './manifest.js';
import { SafetensorsFile } from './safetensors-file.js';

export const CONFIG_FILE = 'config.json';
export const WEIGHTS_FILE = 'model.safetensors';
export const INDEX_FILE = 'model.safetensors.index.json';

/** Whether consolidate() or save16bitModel() makes a file of this name. */
export function isExportFile(name: string): boolean {
  return (
    [CONFIG_FILE, WEIGHTS_FILE, INDEX_FILE].includes(name) ||
    /^model-\d{5,}-of-\d{5,}\.safetensors$/.test(name)
  );
}

const MAX_JSON_BYTES = 64 * 2 ** 20;

interface Home {
  file: SafetensorsFile;
  entry: TensorEntry;
}

/** Headers are read and compared with the index; values when asked for. */
export class WeightFiles {
  private constructor(
    /** As it was given. */
    readonly path: string,
    /** Where the files lie. */
    readonly folder: string,
    private readonly homes: ReadonlyMap<string, Home>,
  ) {}

  /**
   * Of a safetensors file, or of a folder with model.safetensors.index.json or model.safetensors. Throws DS_CHECKPOINT
   * when there is none, when it is damaged, or when the index names a file outside the folder or a tensor that its file
   * has not got; DS_IO when a file cannot be read.
   */
  static async open(path: string): Promise<WeightFiles> {
    const found = await stat(path).catch((cause: Error) => cause);
    if (found instanceof Error) throw absent(path, found);
    if (!found.isDirectory()) {
      return new WeightFiles(path, dirname(path), homesOf(await SafetensorsFile.open(path)));
    }
    const files = await readdir(path);
    if (files.includes(INDEX_FILE)) {
      const index = await readJson(path, INDEX_FILE);
      return new WeightFiles(path, path, await openShards(path, index));
    }
    if (!files.includes(WEIGHTS_FILE)) throw noWeights(path, files);
    return new WeightFiles(path, path, homesOf(await openFile(path, WEIGHTS_FILE)));
  }

  /** Every tensor. */
  get tensors(): ReadonlyMap<string, TensorEntry> {
    return new Map(Array.from(this.homes, ([name, { entry }]) => [name, entry]));
  }

  /** The config.json beside the files; null where there is none. Throws DS_CHECKPOINT when it is damaged. */
  async config(): Promise<JsonObject | null> {
    const found = await stat(join(this.folder, CONFIG_FILE)).catch(() => null);
    return found && readJson(this.folder, CONFIG_FILE);
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

/** The object in a JSON file of a folder. Throws DS_CHECKPOINT when there is none. */
export async function readJson(folder: string, name: string): Promise<JsonObject> {
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
    opened.set(name, homesOf(await openFile(path, name)));
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

function homesOf(file: SafetensorsFile): Map<string, Home> {
  return new Map(file.entries.map((entry) => [entry.name, { file, entry }]));
}

function absent(op: string, cause: Error): DsError {
  return new DsError({
    code: 'DS_CHECKPOINT',
    op,
    expected: `a safetensors file, or a folder with ${WEIGHTS_FILE} or ${INDEX_FILE}`,
    got: cause.message,
    cause,
  });
}

function noWeights(op: string, files: readonly string[]): DsError {
  const expected = `${WEIGHTS_FILE} or ${INDEX_FILE}`;
  const refusal = (got: string, hint: string): DsError =>
    new DsError({ code: 'DS_CHECKPOINT', op, expected, got, hint });
  if (files.includes(LATEST) || files.includes(MANIFEST)) {
    const hint = 'Use engine.loadCheckpoint(), or `ds consolidate` the checkpoint first.';
    return refusal('a checkpoint of an engine', hint);
  }
  const other = files.find((name) => name.endsWith('.safetensors'));
  if (other) return refusal(other, 'Name the file itself where it has another name.');
  const pickled = files.find((name) => /\.(bin|pt|pth)$/.test(name));
  const got = pickled ? `${pickled}, a pickle of PyTorch` : 'neither';
  return refusal(got, 'In Python: model.save_pretrained(dir, safe_serialization=True).');
}

function damaged(op: string, expected: string, got: string): DsError {
  const hint = 'The folder is damaged or incomplete.';
  return new DsError({ code: 'DS_CHECKPOINT', op, expected, got, hint });
}

// WeightFiles: reads weights of other programs and of exports, from one safetensors file, from
// several with an index, or from a GGUF file.

import { createHash } from 'node:crypto';
import { lstat, readdir, stat } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import type { JsonObject } from '../../types/json.js';
import { DsError } from '../errors.js';
import { cpu } from '../runtime/device.js';
import { isObject } from '../runtime/is-object.js';
import { parseJson } from '../runtime/parse-json.js';
import { required } from '../runtime/required.js';
import { errorMessage } from '../runtime/system-error.js';
import { held, Tensor } from '../tensor/index.js';
import { LATEST, MANIFEST } from './directory.js';
import { asDsError, ifThere, isMissingPath } from './file-error.js';
import { isPlainName, openInside } from './folder.js';
import type { GgufFile } from './gguf/gguf-file.js';
import type { TensorEntry } from './header.js';
import { SafetensorsFile } from './safetensors-file.js';
import { type OpenedFiles, openStable } from './stable-files.js';
import { soloWorld } from './world.js';

export const CONFIG_FILE = 'config.json';
export const GENERATION_FILE = 'generation_config.json';
export const WEIGHTS_FILE = 'model.safetensors';
export const INDEX_FILE = 'model.safetensors.index.json';

/** Returns whether consolidate() or save16bitModel() may create a file of this name. */
export function isExportFile(name: string): boolean {
  return (
    [CONFIG_FILE, GENERATION_FILE, WEIGHTS_FILE, INDEX_FILE].includes(name) ||
    /^model-\d{5,}-of-\d{5,}\.safetensors$/.test(name)
  );
}

const MAX_JSON_BYTES = 64 * 2 ** 20;

/** A file that is read by names of tensors. */
type TensorFile = SafetensorsFile | GgufFile;

interface TensorLocation {
  file: TensorFile;
  entry: TensorEntry;
}

/** The JSON files and the open weight files of a folder. All have the same state. */
interface Contents extends Pick<OpenedFiles, 'close'> {
  /** Content of config.json, or null. */
  config: JsonObject | null;
  files: readonly TensorFile[];
  locations: ReadonlyMap<string, TensorLocation>;
}

/**
 * The weights of a model. Files are opened once, and their headers are compared with the index.
 * Values are read when they are requested. The caller of open() closes the files.
 */
export class WeightFiles {
  /**
   * Cached, because readers request it once per tensor, and mixtures of experts have up to 100,000.
   */
  private listed: ReadonlyMap<string, TensorEntry> | null = null;

  private constructor(
    /** The path that was opened. */
    readonly path: string,
    private readonly contents: Contents,
  ) {}

  /**
   * Opens a safetensors file, or a folder with model.safetensors or model.safetensors.index.json.
   * If both exist, model.safetensors is used, as in transformers, unless the index lists it.
   * `hasCodes`: whether tensors may have the dtype of codes (header.ts). Throws DS_IO if a file
   * cannot be read. Throws DS_CHECKPOINT if:
   * - the weights are missing, damaged, or replaced repeatedly;
   * - the index names a file outside of the folder, or a tensor that its file lacks;
   * - a tensor has codes and `hasCodes` is false.
   */
  static async open(path: string, hasCodes = false): Promise<WeightFiles> {
    const stats = await stat(path).catch((cause: Error) => {
      throw absentError(path, cause);
    });
    const open = stats.isDirectory()
      ? () => openFolder(path, hasCodes)
      : () => openSingle(path, hasCodes);
    return new WeightFiles(path, await openStable(soloWorld, path, open));
  }

  /**
   * Returns the tensors of an open GGUF file. Takes ownership of `file`: close() closes it.
   * `config`: the config.json of its model.
   */
  static ofGguf(file: GgufFile, config: JsonObject): WeightFiles {
    const contents = {
      config,
      files: [file],
      locations: locationsIn(file),
      close: () => file.close(),
    };
    return new WeightFiles(file.path, contents);
  }

  close(): Promise<void> {
    return this.contents.close();
  }

  /** Throws DS_IO if a file was written in place since it was opened. */
  async requireUnchanged(): Promise<void> {
    for (const file of this.contents.files) await file.requireUnchanged();
  }

  get tensors(): ReadonlyMap<string, TensorEntry> {
    this.listed ??= new Map(
      Array.from(this.contents.locations, ([name, { entry }]) => [name, entry]),
    );
    return this.listed;
  }

  /** Total bytes of all files. */
  get bytes(): number {
    return this.contents.files.reduce((sum, { bytes }) => sum + bytes, 0);
  }

  /** Content of config.json; null for a folder without this file. */
  get config(): JsonObject | null {
    return this.contents.config;
  }

  /**
   * Fills `bytes` with the bytes of a tensor from byte `from` on. Blocks the thread. Throws
   * DS_CHECKPOINT if the tensor does not exist, DS_IO.
   */
  readNow(name: string, from: number, bytes: Uint8Array): void {
    const { file, entry } = this.locate(name);
    file.readNow(entry, from, bytes);
  }

  /**
   * Returns the values of a tensor on the CPU. The caller releases the tensor. Throws DS_CHECKPOINT
   * if it does not exist, DS_IO.
   */
  async read(name: string): Promise<Tensor> {
    const { file, entry } = this.locate(name);
    const values = held(() => Tensor.empty(entry.shape, entry.dtype, cpu()));
    try {
      await file.readInto(entry, values);
      return values;
    } catch (error) {
      values.release();
      throw error;
    }
  }

  private locate(name: string): TensorLocation {
    const location = this.contents.locations.get(name);
    if (location) return location;
    throw damagedError(`${this.path}: ${name}`, 'this tensor', 'no tensor of this name');
  }
}

async function openSingle(path: string, hasCodes: boolean): Promise<Contents & OpenedFiles> {
  const texts = () => textsOf(dirname(path), false);
  const [config] = await texts();
  const file = await SafetensorsFile.open(path, hasCodes);
  return contentsOf([config, null], texts, { files: [file], locations: locationsIn(file) });
}

async function openFolder(path: string, hasCodes: boolean): Promise<Contents & OpenedFiles> {
  const names = await readdir(path).catch((cause: Error) => {
    throw absentError(path, cause);
  });
  const texts = () => textsOf(path, names.includes(INDEX_FILE));
  const [config, index] = await texts();
  const isWhole = names.includes(WEIGHTS_FILE);
  if (!index && !isWhole) throw noWeightsError(path, names);
  const listed = index ? filesOf(path, index.value) : [];
  const used = isWhole && !listed.includes(WEIGHTS_FILE) ? null : index;
  const opened = await openAll(path, used ? listed : [WEIGHTS_FILE], hasCodes);
  const files = [...opened.values()];
  try {
    const locations = used
      ? indexedLocations(path, used.value, opened)
      : locationsIn(required(opened.get(WEIGHTS_FILE)));
    return contentsOf([config, index], texts, { files, locations });
  } catch (error) {
    await closeAll(files);
    throw error;
  }
}

/**
 * Returns the content of generation_config.json, the sampling settings of the model in `folder`;
 * null without this file. Throws DS_CHECKPOINT if it is damaged, DS_IO.
 */
export async function generationOf(folder: string): Promise<JsonObject | null> {
  return (await findJson(folder, GENERATION_FILE))?.value ?? null;
}

/** The texts of config.json and of the index of a folder; null if they do not exist. */
type Texts = readonly [config: Json | null, index: Json | null];

async function textsOf(folder: string, hasIndex: boolean): Promise<Texts> {
  return [
    await findJson(folder, CONFIG_FILE),
    hasIndex ? await readJson(folder, INDEX_FILE) : null,
  ];
}

function contentsOf(
  texts: Texts,
  textsNow: () => Promise<Texts>,
  { files, locations }: Pick<Contents, 'files' | 'locations'>,
): Contents & OpenedFiles {
  return {
    id: idOf(texts),
    currentIds: async () => idOf(await textsNow()),
    config: texts[0]?.value ?? null,
    files,
    locations,
    close: () => closeAll(files),
  };
}

async function closeAll(files: Iterable<TensorFile>): Promise<void> {
  for (const file of files) await file.close();
}

function idOf(texts: Texts): string {
  const text = JSON.stringify(texts.map((json) => json?.text ?? null));
  return createHash('sha256').update(text).digest('hex');
}

/** The text of a JSON file, and the object that it contains. */
interface Json {
  text: string;
  value: JsonObject;
}

async function findJson(folder: string, name: string): Promise<Json | null> {
  const path = join(folder, name);
  return (await ifThere(path, () => lstat(path))) ? readJson(folder, name) : null;
}

/** Reads a JSON file. Throws DS_CHECKPOINT if it is missing or contains no object. */
async function readJson(folder: string, name: string): Promise<Json> {
  const file = await openInside(folder, name, { followOwn: true });
  try {
    const { path, bytes } = file;
    if (bytes > MAX_JSON_BYTES)
      throw damagedError(path, `at most ${MAX_JSON_BYTES} bytes`, `${bytes}`);
    const text = await file.text(MAX_JSON_BYTES);
    return { text, value: parseObject(text, path) };
  } finally {
    await file.close();
  }
}

function parseObject(text: string, path: string): JsonObject {
  let value: unknown;
  try {
    value = parseJson(text);
  } catch (cause) {
    throw damagedError(path, 'JSON', errorMessage(cause).slice(0, 200));
  }
  if (isObject<JsonObject>(value)) return value;
  throw damagedError(path, 'a JSON object', 'another JSON value');
}

/** Returns the names of the files that an index lists. */
function filesOf(path: string, { weight_map: map }: JsonObject): string[] {
  const location = `${path}/${INDEX_FILE}`;
  if (!isObject(map)) {
    throw damagedError(
      location,
      'a "weight_map" of file names',
      JSON.stringify(map)?.slice(0, 200) ?? 'nothing',
    );
  }
  for (const [name, file] of Object.entries(map)) {
    const good = typeof file === 'string' && isPlainName(file) && file.endsWith('.safetensors');
    if (good) continue;
    const expected = 'the name of a safetensors file in this folder';
    throw damagedError(
      `${location}: ${name}`,
      expected,
      JSON.stringify(file)?.slice(0, 200) ?? 'nothing',
    );
  }
  const names = [...new Set(Object.values(map) as string[])];
  if (names.length === 0)
    throw damagedError(location, 'a "weight_map" with tensors', 'an empty "weight_map"');
  return names;
}

async function openAll(
  path: string,
  names: readonly string[],
  hasCodes: boolean,
): Promise<Map<string, SafetensorsFile>> {
  const opened = new Map<string, SafetensorsFile>();
  try {
    for (const name of names) {
      const file = await openInside(path, name, { followOwn: true });
      opened.set(name, await SafetensorsFile.of(file, hasCodes));
    }
    return opened;
  } catch (error) {
    await closeAll(opened.values());
    throw error;
  }
}

function indexedLocations(
  path: string,
  { weight_map: map }: JsonObject,
  files: ReadonlyMap<string, SafetensorsFile>,
): Map<string, TensorLocation> {
  const byFile = new Map(Array.from(files, ([name, file]) => [name, locationsIn(file)]));
  const locations = new Map<string, TensorLocation>();
  for (const [name, file] of Object.entries(map as JsonObject)) {
    const location = byFile.get(file as string)?.get(name);
    if (!location)
      throw damagedError(
        `${path}/${file}: ${name}`,
        'the tensor that the index lists',
        'no tensor of this name',
      );
    locations.set(name, location);
  }
  return locations;
}

function locationsIn(file: TensorFile): Map<string, TensorLocation> {
  return new Map(file.entries.map((entry) => [entry.name, { file, entry }]));
}

/** Returns DS_CHECKPOINT if the path does not exist, DS_IO if it cannot be read. */
function absentError(op: string, cause: Error): unknown {
  if (!isMissingPath(cause)) return asDsError(cause, op);
  return new DsError({
    code: 'DS_CHECKPOINT',
    op,
    expected: `a safetensors file, or a folder with ${WEIGHTS_FILE} or ${INDEX_FILE}`,
    got: cause.message,
    cause,
  });
}

function noWeightsError(op: string, files: readonly string[]): DsError {
  const expected = `${WEIGHTS_FILE} or ${INDEX_FILE}`;
  const refusedError = (got: string, hint: string): DsError =>
    new DsError({ code: 'DS_CHECKPOINT', op, expected, got, hint });
  if (files.includes(LATEST) || files.includes(MANIFEST)) {
    const hint = 'Use engine.loadCheckpoint(), or `ds export` the checkpoint first.';
    return refusedError('a checkpoint of an engine', hint);
  }
  if (files.includes('adapter_config.json')) {
    const hint =
      'Open its model first, then call peft.loadAdapter(model, folder). To store both in one folder, call peft.merge(model), peft.unload(model) and nn.saveWeights(model, dir).';
    return refusedError('an adapter of PEFT', hint);
  }
  const other = files.find((name) => name.endsWith('.safetensors'));
  if (other) return refusedError(other, 'Pass the file itself if it has another name.');
  const pickled = files.find((name) => /\.(bin|pt|pth)$/.test(name));
  const got = pickled ? `${pickled}, a pickle of PyTorch` : 'neither';
  return refusedError(
    got,
    'Convert it in Python: model.save_pretrained(dir, safe_serialization=True).',
  );
}

function damagedError(op: string, expected: string, got: string): DsError {
  const hint = 'The folder is damaged or incomplete: copy or download it again.';
  return new DsError({ code: 'DS_CHECKPOINT', op, expected, got, hint });
}

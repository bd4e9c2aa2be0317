// Builds a model from a folder of Hugging Face's transformers (config.json and safetensors).
import { existsSync, readFileSync, statSync } from 'node:fs';
import { stat } from 'node:fs/promises';
import { join } from 'node:path';
import type { JsonObject } from '../../types/json.js';
import { generationOf, ifThere, WeightFiles } from '../checkpoint/index.js';
import { DsError } from '../errors.js';
import { findCachedFolder, findOrPullFolder } from '../hub/local-folder.js';
import type { Module } from '../nn/module.js';
import { type ReadQuantized, readQuantized } from '../peft/index.js';
import { type DType, isDType, isFloating } from '../runtime/dtype.js';
import { formatValue } from '../runtime/format-value.js';
import { argumentError } from '../runtime/input-errors.js';
import { isObject } from '../runtime/is-object.js';
import { parseJson, requireShallow } from '../runtime/parse-json.js';
import { requireType } from '../runtime/require-type.js';
import { isGgufPath as isGguf } from '../text/gguf-tokenizer.js';
import { chooseFamily } from './choose-family.js';
import { openGguf } from './gguf/read.js';
import { type Layout, startFromFiles } from './load-weights.js';
import { ModelConfig } from './model-config.js';
import type { ModelOrigin } from './origin.js';
import { findCoded, isCoded, requireNoCodes } from './quantized/coded.js';
import { wrapDecodedLayout } from './quantized/decoded.js';
import { findFp4, findMlx, isFp4, isMlx } from './quantized/group-codes.js';
import { wrapMxfp4Layout } from './quantized/mxfp4.js';
import { readPacked } from './quantized/read-packed.js';
import { readScheme } from './quantized/scheme.js';
import { namedDType, storedDType } from './stored-weights.js';
import { wrapTransposedLayout } from './transposed-experts.js';

/** A folder's metadata, known before its values are read. */
export interface ModelFolder {
  readonly config: ModelConfig;
  /** Names of the tensors in its files. */
  readonly tensors: { has(name: string): boolean };
}

/** A model that keeps the configuration of its folder. */
export interface FolderModel extends Module {
  /** @internal */
  cameFrom(origin: ModelOrigin): void;
  /** @internal Called with the names of a head that the folder lacks. */
  startedRandom?(names: readonly string[]): void;
}

/** Model classes for one value of config.json's model_type. */
export interface Family<Model extends FolderModel, Options> {
  readonly modelType: string;
  /** Other values for models of the same computation. Default: none. */
  readonly alsoTypes?: readonly string[] | undefined;
  /** Values of model_type of multimodal folders with this language model. Default: none. */
  readonly textOf?: readonly string[] | undefined;
  /** Whether it has heads of any task. Default: only that of a causal language model. */
  readonly anyHead?: boolean;
  /** Whether a folder needs a task. Encoders do. Default: false. */
  readonly needsTask?: boolean;
  /** The supported architecture, for hints of errors. */
  readonly architecture: string;
  /**
   * Builds a new model of the folder's sizes. Throws DS_CHECKPOINT for unsupported computations.
   */
  build(folder: ModelFolder, options: Options): Model;
  /** Names and layouts of the parameters of `model` in the files. */
  layout(model: Model): Layout;
}

/** Families to choose from; a function chooses them by the keys of config.json. */
export type Families<Model extends FolderModel, Options> =
  | readonly Family<Model, Options>[]
  | ((config: JsonObject) => readonly Family<Model, Options>[]);

const familiesOf = <Model extends FolderModel, Options>(
  families: Families<Model, Options>,
  config: JsonObject,
): readonly Family<Model, Options>[] =>
  typeof families === 'function' ? families(config) : families;

/** With labels of the caller, a head of another size is replaced. */
function withHead(layout: Layout, options: object): Layout {
  const { labels } = options as { labels?: unknown };
  return layout.head && labels !== undefined
    ? { ...layout, head: { ...layout.head, replaces: true } }
    : layout;
}

/** Options of every model that is read from a folder. */
export interface FolderOptions {
  /** Branch, tag or commit of a model of the hub. Default: "main". */
  revision?: string;
  /**
   * Dtype of the parameters: "f32", "f16", "bf16", "f64". Default: that of the files or, if it
   * varies, that of config.json.
   */
  dtype?: DType;
}

function requireFolderOptions<Options extends FolderOptions>(options: Options): Options {
  if (!isObject(options)) {
    const expected = 'options, such as { dtype: "bf16" }';
    const got = formatValue(options);
    throw new DsError({ code: 'DS_ARGUMENT', op: 'fromPretrained', expected, got });
  }
  const { dtype } = options;
  if (dtype === undefined || (isDType(dtype) && isFloating(dtype))) return options;
  const expected = '"f32", "f16", "bf16" or "f64"';
  throw new DsError({
    code: 'DS_ARGUMENT',
    op: 'fromPretrained dtype',
    expected,
    got: formatValue(dtype),
  });
}

/** Returns the folder of a path or a name on the hub, and the options without the revision. */
export async function locateFolder<Options extends FolderOptions>(
  location: string,
  given: Options,
): Promise<{ dir: string; options: Options }> {
  requireType('fromPretrained dir', location, 'string');
  if (!isObject(given)) return { dir: location, options: given };
  const { revision, ...options } = given as FolderOptions;
  const dir = await findOrPullFolder('fromPretrained', location, { need: 'model', revision });
  return { dir, options: options as Options };
}

/**
 * The model at `location`, a folder or a name on the hub; its model_type selects the family. Values
 * stay in the files until they are needed. Rejects with DS_CHECKPOINT if it belongs to no family,
 * is damaged, or has other tensors than the model; DS_IO if it cannot be read.
 */
export async function readPretrained<Model extends FolderModel, Options>(
  location: string,
  families: Families<Model, Options>,
  all: Options & FolderOptions,
): Promise<Model> {
  const { dir, options } = await locateFolder(location, requireFolderOptions(all));
  const { dtype: requestedDtype, ...familyOptions } = options;
  const files = await openFiles(dir);
  try {
    if (!files.config) throw notPretrainedError(dir, 'no file config.json');
    // MLX writes its section under the first name, and newer versions under both.
    const { quantization = null, quantization_config = quantization, ...all } = files.config;
    const location = isGguf(dir) ? dir : join(dir, 'config.json');
    const { family, values } = chooseFamily(location, all, familiesOf(families, all));
    const config = new ModelConfig(location, values, family.architecture);
    const scheme =
      quantization_config === null ? null : config.with('quantization_config', quantization_config);
    const model = family.build(
      { config, tensors: files.tensors },
      familyOptions as unknown as Options,
    );
    const dtype = requestedDtype ?? (isGguf(dir) ? namedDType(values) : storedDType(files));
    model.cameFrom({ config: values, generation: isGguf(dir) ? null : await generationOf(dir) });
    const plain = withHead(family.layout(model), familyOptions);
    const wrappedLayout =
      scheme === null ? wrapTransposedLayout(model, files, plain, dtype) : plain;
    const layout = await besideQuantized(model, files, wrappedLayout, {
      config,
      quantization: scheme,
      dtype,
    });
    requireNoCodes(files, layout);
    const random = await startFromFiles(model, files, { op: 'fromPretrained', layout, dtype });
    if (random.length > 0) model.startedRandom?.(random);
    return model;
  } catch (error) {
    await files.close();
    throw error;
  }
}

/** Replaces the word Infinity, which Python writes and JSON lacks, by transformers 5's object. */
const replaceInfinity = (text: string): string =>
  text.replace(/"(?:[^"\\]|\\.)*"|\bInfinity\b/g, (found) =>
    found === 'Infinity' ? '{"__float__": "Infinity"}' : found,
  );

/**
 * A new model with the sizes of a config.json and random weights: `source` is the object, the file
 * or its folder. Throws as readPretrained().
 */
export function buildFromConfig<Model extends FolderModel, Options>(
  source: JsonObject | string,
  families: Families<Model, Options>,
  options: Options,
): Model {
  if (typeof source !== 'string' && !isObject(source)) {
    const expected = 'a config.json: the object, the file or its folder';
    throw new DsError({
      code: 'DS_ARGUMENT',
      op: 'fromConfig',
      expected,
      got: formatValue(source),
    });
  }
  const [location, all] =
    typeof source === 'string'
      ? readConfig(findCachedFolder('fromConfig', source, { need: 'config' }))
      : ['config', source];
  if (typeof source !== 'string') requireShallowConfig(source);
  const { family, values } = chooseFamily(location, all, familiesOf(families, all));
  const config = new ModelConfig(location, values, family.architecture);
  const model = family.build({ config, tensors: { has: () => true } }, options);
  model.cameFrom({ config: values, generation: null });
  return model;
}

function requireShallowConfig(source: JsonObject): void {
  try {
    requireShallow(source);
  } catch (cause) {
    throw argumentError('fromConfig', 'a config.json', (cause as Error).message);
  }
}

function readConfig(path: string): [string, JsonObject] {
  const file = path.endsWith('.json') ? path : join(path, 'config.json');
  try {
    // Opening a pipe would block until a writer opens it.
    if (existsSync(file) && !statSync(file).isFile()) throw new Error('no regular file');
    const values: unknown = parseJson(replaceInfinity(readFileSync(file, 'utf8')));
    if (isObject<JsonObject>(values)) return [file, values];
    throw new Error('other JSON');
  } catch (error) {
    const cause = error as NodeJS.ErrnoException;
    const code = cause.code ? 'DS_IO' : 'DS_CHECKPOINT';
    throw new DsError({ code, op: file, expected: 'a JSON object', got: cause.message, cause });
  }
}

/** The configuration of a folder with quantized weights, and the dtype of all others. */
interface Quantized {
  readonly config: ModelConfig;
  readonly quantization: ModelConfig | null;
  readonly dtype: DType;
}

/**
 * Reads the layers with 4- or 8-bit weights; returns the layout of the rest. Throws DS_CHECKPOINT
 * for a quantization that the package cannot read.
 */
async function besideQuantized(
  model: FolderModel,
  files: WeightFiles,
  layout: Layout,
  { config, quantization, dtype }: Quantized,
): Promise<Layout> {
  if (quantization === null) return layout;
  if (quantization.get('quant_method') === 'mxfp4') {
    return wrapMxfp4Layout(model, files, layout, dtype);
  }
  const find = [
    { is: isMlx, find: findMlx },
    { is: isCoded, find: findCoded },
    { is: isFp4, find: findFp4 },
  ].find((reader) => reader.is(quantization))?.find;
  if (find) {
    const matrices = await find(files, layout, quantization);
    if (matrices.length === 0) {
      const key = ['format', 'quant_method', 'bits'].find((key) => quantization.has(key)) ?? 'bits';
      const expected = 'a folder with codes of weights';
      throw quantization.refusalError(key, expected, quantization.get(key));
    }
    return wrapDecodedLayout(model, files, layout, { matrices, dtype });
  }
  const isBitsAndBytes = quantization.get('quant_method') === 'bitsandbytes';
  if (isBitsAndBytes && quantization.get('bnb_4bit_quant_type') !== 'nf4') {
    const got = quantization.get('bnb_4bit_quant_type');
    throw config.refusalError('quantization_config', 'NF4 of bitsandbytes', got);
  }
  if (isBitsAndBytes) return withoutRead(layout, await readQuantized(model, files));
  const { matrices, ...read } = await readPacked(model, files, layout, readScheme(quantization));
  const rest = withoutRead(layout, read);
  return matrices.length === 0 ? rest : wrapDecodedLayout(model, files, rest, { matrices, dtype });
}

/** Returns the layout without tensors that are already loaded. */
function withoutRead(layout: Layout, { consumed, filled }: ReadQuantized): Layout {
  const nameOf = (name: string): string | null => (consumed.has(name) ? null : layout.nameOf(name));
  return { ...layout, nameOf, filled };
}

async function openFiles(path: string): Promise<WeightFiles> {
  const stats = await ifThere(path, () => stat(path));
  if (!stats) throw notPretrainedError(path, 'nothing of this name');
  if (stats.isDirectory()) return WeightFiles.open(path, true);
  if (isGguf(path)) return openGguf(path);
  throw notPretrainedError(path, 'a file');
}

function notPretrainedError(op: string, got: string): DsError {
  return new DsError({
    code: 'DS_CHECKPOINT',
    op,
    expected: 'a folder with config.json and safetensors, or a .gguf file',
    got,
    hint: 'Check the path. Names of the Hugging Face hub, such as "Qwen/Qwen3-0.6B", are downloaded; paths are not.',
  });
}

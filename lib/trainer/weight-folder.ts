// Writes the model of an engine as a folder for transformers (whole weights) or for PEFT
// (adapters), with the tokenizer.
import { readFileSync } from 'node:fs';
import { readdir, readFile, realpath } from 'node:fs/promises';
import { basename, join } from 'node:path';
import type { JsonObject } from '../../types/json.js';
import { begin, type Draft, finish } from '../checkpoint/commit.js';
import { modelFile } from '../checkpoint/directory.js';
import { orDsError } from '../checkpoint/file-error.js';
import {
  type CheckpointWorld,
  consolidate,
  type ExportDType,
  isUnfinishedFile,
  layOut,
  moveFile,
  onAllRanks,
  replaceFile,
  TORCH_DTYPES,
} from '../checkpoint/index.js';
import { makeFolder } from '../checkpoint/make-folder.js';
import type { Engine } from '../engine/engine.js';
import { gatheredParameters } from '../engine/parameters/gathered-parameters.js';
import { DsError } from '../errors.js';
import { writeGgufTokenizer } from '../models/gguf/write-tokenizer.js';
import type { Module } from '../nn/module.js';
import { adapterParameters, namesItsBase } from '../peft/adapter-files.js';
import { modelFilesIn } from '../peft/adapter-folder.js';
import { isPlain, lorasOf, mergedNames, requireUnmerged, saveAdapter } from '../peft/index.js';
import { isObject } from '../runtime/is-object.js';
import { parseJson } from '../runtime/parse-json.js';
import { isGgufPath } from '../text/gguf-tokenizer.js';
import type { Tokenizer } from '../text/index.js';
import { CHAT_TEMPLATE_FILE, TOKENIZER_FILES } from '../text/tokenizer-files.js';

const CONFIG = 'config.json';
const GENERATION = 'generation_config.json';
const WEIGHTS = 'model.safetensors';
/** Files of an adapter. */
const ADAPTER_FILES: readonly string[] = ['adapter_config.json', 'adapter_model.safetensors'];
/**
 * The file that all ranks write and that rank 0 then converts. Its name is that of a checkpoint's
 * weights.
 */
const OWN_LAYOUT = modelFile(0);

/** Returns whether writeWeightFolder() may write a file of this name. */
export function isSavedFile(name: string): boolean {
  const isPart = /^model(-\d{5}-of-\d{5})?\.safetensors(\.index\.json)?$/.test(name);
  const known = [CONFIG, GENERATION, ...TOKENIZER_FILES, ...ADAPTER_FILES];
  return isPart || known.includes(name) || isUnfinishedFile(name);
}

/** The sources of a folder. All ranks must call the functions with this argument. */
interface WeightSource {
  engine: Engine;
  tokenizer: Tokenizer | null;
  world: CheckpointWorld;
}

/**
 * Writes the model and the tokenizer to `dir` and replaces its files.
 *
 * - A model with adapters: the adapters, in PEFT's files.
 * - Other models: config.json and whole weights in the training dtype. Some models have files with
 *   another layout than their parameters. Rank 0 converts their weights from the engine's
 *   `checkpoint` in `dir`. If it is null, all ranks save the weights to a draft first.
 *
 * Rejects on all ranks with DS_IO and DS_CHECKPOINT. Writes nothing if `dir` has a config.json that
 * is no model's.
 */
export async function writeWeightFolder(
  source: WeightSource,
  dir: string,
  checkpoint: string | null,
): Promise<void> {
  const { engine, world } = source;
  if (hasAdaptersBeside(engine.module)) return writeAdapterFolder(source, dir);
  const description = engine.module.describe();
  await onAllRanks(world, 'making the folder of weights', async () => {
    if (description && world.rank === 0) requireModelConfig(dir);
    await orDsError(dir, () => makeFolder(dir));
    return null;
  });
  if (!description || (description.transposed.length === 0 && !description.pieces)) {
    await engine.save16bitModel(dir, WEIGHTS);
  } else {
    await consolidateWeights(source, dir, checkpoint);
  }
  await onAllRanks(world, 'writing config.json and tokenizer', async () => {
    if (world.rank !== 0) return null;
    const config = description && { ...description.config, torch_dtype: torchDType(engine) };
    if (config) await writeJson(dir, CONFIG, config);
    const generation = description?.generation as JsonObject | undefined;
    if (generation) await writeJson(dir, GENERATION, generation);
    if (source.tokenizer) await copyTokenizer(source.tokenizer, dir);
    return null;
  });
}

/**
 * Returns whether the model has adapters that are not merged: merged ones are part of the weights.
 */
const hasAdaptersBeside = (module: Module): boolean =>
  lorasOf(module).size > 0 && mergedNames(module).size === 0;

/** Writes only the adapters. The base model has not changed, so no rank gathers it. */
async function writeAdapterFolder(source: WeightSource, dir: string): Promise<void> {
  const { engine, world } = source;
  await onAllRanks(world, 'making the folder of the adapter', async () => {
    if (world.rank === 0) {
      requireNoModel(dir);
      warnOfNoBase(engine.module, dir);
    }
    await orDsError(dir, () => makeFolder(dir));
    return null;
  });
  await onAllRanks(world, 'writing the adapter and tokenizer', async () => {
    const save = () => (world.rank === 0 ? saveAdapter(engine.module, dir) : null);
    await gatheredParameters(adapterParameters(engine.module), {}, save);
    if (world.rank === 0 && source.tokenizer) await copyTokenizer(source.tokenizer, dir);
    return null;
  });
}

/**
 * Throws DS_CHECKPOINT if `dir` contains a model: `dir` would then be loaded without the adapter.
 */
export function requireNoModel(dir: string): void {
  const files = modelFilesIn(dir);
  if (files.length === 0) return;
  throw new DsError({
    code: 'DS_CHECKPOINT',
    op: dir,
    expected: 'a folder without the weights of a model, to save an adapter in',
    got: `one with ${CONFIG} and ${files.join(', ')}`,
    hint: 'It would load as that model, without the adapter: choose another folder.',
  });
}

/** Models that have had the warning about a missing base model. */
const unnamed = new WeakSet<Module>();

function warnOfNoBase(module: Module, dir: string): void {
  if (namesItsBase(module) || unnamed.has(module)) return;
  unnamed.add(module);
  const text = `${dir} holds only the adapters, and its file names no base model, because the model was not loaded from a folder. Save its weights before peft.addLora(), and pass their folder as baseModelNameOrPath.`;
  process.emitWarning(text, { type: 'DsWarning', code: 'DS_CHECKPOINT' });
}

/** Throws DS_CHECKPOINT if `dir` has a config.json that is no model's, such as that of a run. */
export function requireModelConfig(dir: string): void {
  const path = join(dir, CONFIG);
  let text: string;
  try {
    text = readFileSync(path, 'utf8');
  } catch {
    return;
  }
  const keys = keysOf(text);
  if (keys.some((key) => key === 'model_type' || key === 'torch_dtype')) return;
  throw new DsError({
    code: 'DS_CHECKPOINT',
    op: path,
    expected: 'nothing of this name, or the configuration of a model (model_type) to replace',
    got: keys.length > 0 ? `a file with the keys ${keys.slice(0, 3).join(', ')}` : 'other contents',
    hint: 'Nothing was changed: choose another folder, or move this one away.',
  });
}

/** Returns the keys of a JSON object; an empty list for any other text. */
function keysOf(text: string): string[] {
  try {
    const value: unknown = parseJson(text);
    return isObject(value) ? Object.keys(value) : [];
  } catch {
    return [];
  }
}

/** Writes `value` to `file` in `dir` atomically. */
export function writeJson(dir: string, file: string, value: JsonObject): Promise<void> {
  return replaceFile(join(dir, file), `${JSON.stringify(value, null, 2)}\n`);
}

/**
 * Writes the weights that all ranks have saved, in the layout of the model's files. Rank 0 reads
 * them from the engine's `checkpoint` or, if it is null, from a draft in the layout of the
 * parameters.
 */
async function consolidateWeights(
  { engine, world }: WeightSource,
  dir: string,
  checkpoint: string | null,
): Promise<void> {
  let draft: Draft | null = null;
  try {
    const [name] = await onAllRanks(world, 'making a folder for weights', async () => {
      requireUnmerged('Trainer save', engine.module);
      if (world.rank !== 0) return null;
      draft = await begin(dir, 'weights');
      return basename(draft.folder);
    });
    const folder = join(dir, String(name));
    if (checkpoint === null) await engine.save16bitModel(folder, OWN_LAYOUT);
    await onAllRanks(world, 'consolidating weights', async () => {
      if (world.rank !== 0) return null;
      const files =
        checkpoint === null
          ? await layOut(join(folder, OWN_LAYOUT), folder, describedTensors(engine))
          : (await consolidate(checkpoint, folder, { dtype: exportDType(engine) })).files;
      for (const file of files) await moveFile(join(folder, file), join(dir, file));
      return null;
    });
  } finally {
    if (draft) await finish(draft);
  }
}

/** Returns the model's description; null if its tensors differ from it (adapters, 4-bit layers). */
const describedTensors = ({ module }: Engine): JsonObject | null =>
  isPlain(module) ? module.describe() : null;

/**
 * Copies the files of the tokenizer to `dir`, unless `dir` is the tokenizer's own folder. A chat
 * template that the program has set replaces that of the folder.
 */
async function copyTokenizer(tokenizer: Tokenizer, dir: string): Promise<void> {
  await orDsError(dir, async () => {
    await copyTokenizerFiles(tokenizer, dir);
    const { ownTemplate } = tokenizer;
    if (ownTemplate !== null) await replaceFile(join(dir, CHAT_TEMPLATE_FILE), ownTemplate);
  });
}

async function copyTokenizerFiles({ folder }: Tokenizer, dir: string): Promise<void> {
  if (isGgufPath(folder)) {
    await writeGgufTokenizer(folder, dir);
    return;
  }
  if ((await realpath(folder)) === (await realpath(dir))) return;
  const there = new Set(await readdir(folder));
  for (const file of TOKENIZER_FILES.filter((name) => there.has(name))) {
    await replaceFile(join(dir, file), await readFile(join(folder, file)));
  }
}

function exportDType({ config }: Engine): ExportDType {
  return config.bf16.enabled ? 'bf16' : config.fp16.enabled ? 'fp16' : 'fp32';
}

const torchDType = (engine: Engine): string => TORCH_DTYPES[exportDType(engine)];

// Loads and saves adapters in PEFT's format: adapter_config.json and adapter_model.safetensors.

import { join } from 'node:path';
import {
  converted,
  readSliceNames,
  replaceFile,
  WeightFiles,
  writeAlone,
} from '../checkpoint/index.js';
import { DsError } from '../errors.js';
import { findOrPullFolder } from '../hub/local-folder.js';
import type { Module } from '../nn/module.js';
import { isFactor } from '../nn/name-mismatch.js';
import type { Parameter } from '../nn/parameter.js';
import { cpu } from '../runtime/device.js';
import { type DType, dtypeSize, isFloating } from '../runtime/dtype.js';
import { argumentError } from '../runtime/input-errors.js';
import * as kernels from '../runtime/kernels.generated.js';
import { makeFolderNow } from '../runtime/make-folder.js';
import { namesOf, readOptions } from '../runtime/options.js';
import { requireNoSurplus, requireType } from '../runtime/require-type.js';
import { leading } from '../runtime/required.js';
import { describe, numel } from '../runtime/view.js';
import { held, noGrad, scope, type Tensor, to } from '../tensor/index.js';
import { markChanged } from '../tensor/tape.js';
import { adapterConfigOf, baseNameOf, parseAdapterConfig } from './adapter-config.js';
import { CONFIG, ioError, readJson, WEIGHTS } from './adapter-json.js';
import { labelMetadata, requireLabels } from './adapter-labels.js';
import { activeAdapters, addSet, deleteAdapter, requireName, setAdapter } from './adapter-sets.js';
import { addAdapters, configOf, lorasOf, sizesOf, unload } from './lora.js';
import { LoraExperts } from './lora-experts.js';
import type { LoraConfig } from './lora-options.js';
import { LoraSum } from './lora-sum.js';
import { isSavedWhole, wholeModules } from './targets.js';

/** Prefix of PEFT for the names of the wrapped model. */
export const PREFIX = 'base_model.model.';
const SHOWN = 10;
/** Number of bytes to compare at a time, because a table can exceed the size limit of a buffer. */
const COMPARED = 2 ** 22;

/** A tensor of the files. */
interface Saved {
  /** Name in the files. */
  name: string;
  parameter: Parameter;
  /** Whether the file contains the transpose. */
  transposed: boolean;
}

/**
 * Saves the adapters of `model` to the folder `dir` in PEFT's format, with trained biases and
 * modules, and with the names of a classifier's labels. If an engine trains the model, one rank
 * saves while all ranks gather: `await engine.withFullWeights(() => engine.globalRank === 0 &&
 * saveAdapter(model, dir))`. The values are copied before the call returns.
 *
 * Resolves with the paths. Warns about trained parameters outside the adapter, and about layers
 * that PEFT does not find, because transformers gives them other names. Rejects with DS_ARGUMENT
 * for a model without adapters, DS_RELEASED for sharded values, and DS_IO. Source: PEFT's
 * save_pretrained.
 */
export function saveAdapter(model: Module, dir: string): Promise<string[]>;
export async function saveAdapter(
  model: Module,
  dir: string,
  ...surplus: readonly unknown[]
): Promise<string[]> {
  requireNoSurplus('saveAdapter', surplus);
  requireType('saveAdapter dir', dir, 'string');
  const config = configOf('saveAdapter', model);
  if ([...lorasOf(model).values()].some((layer) => layer instanceof LoraSum)) {
    const hint = 'Call peft.saveAdapters(), which writes a folder for each.';
    throw argumentError('saveAdapter', 'one active adapter', 'several active adapters', hint);
  }
  model.stateDict(); // Waits for transfers of an engine.
  const copies: Tensor[] = [];
  try {
    const saved = savedOf(model);
    warnOfOthers(model, saved, dir);
    warnOfNames(model, dir);
    const sources = saved.map(({ name, parameter, transposed }) => {
      const { dtype } = parameter;
      const copy = held(() => noGrad(() => scope(() => to(parameter, cpu()).clone())));
      const values = converted(name, copy, { dtype, transposed });
      copies.push(values);
      return { name, dtype, shape: values.shape, values };
    });
    const text = JSON.stringify(adapterConfigOf(model, config, modulesOf(model)), null, 2);
    makeFolderNow(dir);
    const paths = leading(
      [CONFIG, WEIGHTS].map((file) => join(dir, file)),
      2,
    );
    await writeAlone(paths[1], sources, labelMetadata(model));
    await replaceFile(paths[0], `${text}\n`);
    return paths;
  } catch (cause) {
    throw ioError('saveAdapter', dir, cause);
  } finally {
    for (const copy of copies) copy.release();
  }
}

/** Returns the modules with adapters; experts have adapters of parameters instead. */
const modulesOf = (model: Module): string[] =>
  [...lorasOf(model)].filter(([, layer]) => !(layer instanceof LoraExperts)).map(([name]) => name);

/** @internal Parameters that saveAdapter() reads; an engine must gather them first. */
export const adapterParameters = (model: Module): Parameter[] => [
  ...new Set(savedOf(model).map(({ parameter }) => parameter)),
];

/** @internal Returns whether the adapter files contain the name of the base model. */
export const namesItsBase = (model: Module): boolean =>
  baseNameOf(model, configOf('saveAdapter', model)) !== null;

/** Warns about trained parameters that PEFT's format cannot contain. */
function warnOfOthers(model: Module, saved: readonly Saved[], dir: string): void {
  const written = new Set(saved.map(({ parameter }) => parameter));
  const others = [...model.namedParameters()].filter(
    ([, parameter]) => parameter.requiresGrad && !written.has(parameter),
  );
  if (others.length === 0) return;
  const names = formatNames(others.map(([name]) => name));
  const text = `saveAdapter ${dir}: the files do not contain ${names}, which is also trained. List its module in modulesToSave of peft.addLora(), or use engine.saveCheckpoint().`;
  process.emitWarning(text, { type: 'DsWarning', code: 'DS_CHECKPOINT' });
}

/** Warns about layers with another name in transformers, where PEFT does not find them. */
function warnOfNames(model: Module, dir: string): void {
  const files = readSliceNames(model.describe()?.pieces) ?? {};
  const renamed = modulesOf(model).filter((name) => {
    const weight = `${name}.weight`;
    return Object.hasOwn(files, weight) && files[weight]?.join() !== weight;
  });
  if (renamed.length === 0) return;
  const text = `saveAdapter ${dir}: PEFT does not find ${formatNames(renamed)}, which transformers gives other names. peft.loadAdapter() does. For transformers, call peft.merge() and peft.unload(), then save the model.`;
  process.emitWarning(text, { type: 'DsWarning', code: 'DS_CHECKPOINT' });
}

/** Options of loadAdapter(). */
export interface LoadAdapterOptions {
  /** Whether the adapter is trainable. Default: false: all parameters are frozen. */
  isTrainable?: boolean;
  /** Branch, tag or commit of an adapter of the hub. Default: "main". */
  revision?: string;
  /**
   * Name of a new adapter, in addition to the model's other adapters; setAdapter() activates it.
   * Default: the values replace those of the active adapter, or become the first adapter.
   */
  adapterName?: string;
}

/**
 * Loads the adapter in the folder `dir` into `model`. A name on the hub is downloaded into the
 * cache once; an existing path wins over a name. If the model has adapters of the same layers, only
 * their values change. Call it before initialize(), on every rank. Returns the model.
 *
 * Rejects with DS_CHECKPOINT for methods other than LoRA, for unsupported options, and for tensors
 * that are missing, unexpected or of another shape. Rejects with DS_HUB if a download fails,
 * DS_NONFINITE for values beyond f16, and DS_ARGUMENT if no layer matches. The model is then
 * unchanged. After DS_IO, existing adapters may be partly loaded. Source: PEFT's
 * PeftModel.from_pretrained.
 */
export function loadAdapter<Model extends Module>(
  model: Model,
  dir: string,
  given?: LoadAdapterOptions,
): Promise<Model>;
export async function loadAdapter<Model extends Module>(
  model: Model,
  location: string,
  given: LoadAdapterOptions = {},
  ...surplus: readonly unknown[]
): Promise<Model> {
  requireNoSurplus('loadAdapter', surplus);
  const options = readOptions('loadAdapter', given, namesOf.LoadAdapterOptions);
  const { isTrainable = false, revision, adapterName: name } = options;
  if (name !== undefined) requireName('loadAdapter adapterName', name);
  requireType('loadAdapter dir', location, 'string');
  const dir = await findOrPullFolder('loadAdapter', location, { need: 'adapter', revision });
  const path = join(dir, CONFIG);
  const config = parseAdapterConfig(path, await readJson(path));
  await requireLabels(model, dir);
  const files = await WeightFiles.open(join(dir, WEIGHTS));
  try {
    const before = name === undefined ? [] : activeAdapters(model);
    const isNew = lorasOf(model).size === 0;
    const trained = model.parameters().filter(({ requiresGrad }) => requiresGrad);
    if (name !== undefined) {
      addSet('loadAdapter', model, name, config);
      setAdapter(model, name);
    } else if (isNew) addAdapters(model, config);
    else requireSame(path, model, config);
    try {
      const matched = match(files, savedOf(model), basesOf(model));
      requireTied(files, matched);
      await requireStorable(files, matched);
      for (const [name, saved] of matched) await fill(files, name, saved);
      await files.requireUnchanged();
      if (before.length > 0) setAdapter(model, before);
    } catch (error) {
      if (name !== undefined && before.length > 0) {
        setAdapter(model, before);
        deleteAdapter(model, name);
        throw error;
      }
      if (isNew) {
        unload(model);
        for (const parameter of trained) parameter.requireGrad(true);
      }
      throw error;
    }
  } finally {
    await files.close();
  }
  if (!isTrainable && name === undefined) model.requiresGrad_(false);
  return model;
}

/** Throws if the adapters of `model` are merged or use another scaling factor than `config`. */
function requireSame(path: string, model: Module, config: LoraConfig): void {
  for (const [layer, { sizesByName, isMerged }] of lorasOf(model)) {
    if (isMerged) {
      const [expected, got] = ['unmerged adapters', 'merged adapters'];
      const hint = 'Call peft.unmerge() first.';
      throw argumentError('loadAdapter', expected, got, hint);
    }
    for (const [end, sizes] of sizesByName) {
      const name = layer + end;
      const { scaling } = sizesOf(name, config);
      if (scaling === sizes.scaling) continue;
      throw new DsError({
        code: 'DS_CHECKPOINT',
        op: path,
        expected: `the scaling factor ${sizes.scaling} of ${name}`,
        got: String(scaling),
        hint: 'Call peft.unload(model) before loading it.',
      });
    }
  }
}

/** Returns all tensors of the adapter files. */
function savedOf(model: Module): Saved[] {
  const config = configOf('saveAdapter', model);
  const layers = lorasOf(model);
  const transposedNames = new Set(model.describe()?.transposed);
  const saved: Saved[] = [];
  for (const [name, parameter] of model.namedParameters()) {
    const dot = name.lastIndexOf('.');
    const [owner, last] = [name.slice(0, Math.max(dot, 0)), name.slice(dot + 1)];
    const isWrapped = layers.has(owner);
    const isBias = last === 'bias' && wantsBias(config.bias, isWrapped);
    const isWhole = parentsOf(name).some((parent) => isSavedWhole(parent, wholeModules(config)));
    if (!isFactor(name) && !isBias && !isWhole) continue;
    const savedName = isBias && isWrapped ? `${owner}.base_layer.bias` : name;
    saved.push({ name: PREFIX + savedName, parameter, transposed: transposedNames.has(name) });
  }
  return [...saved, ...tiedOf(model, config, saved)];
}

/** Returns the further copies of tied modules: PEFT stores a copy for each name. */
function tiedOf(model: Module, config: LoraConfig, saved: readonly Saved[]): Saved[] {
  const names = wholeModules(config);
  const tiedNames = [...model.tiedNames()].filter(([tied]) =>
    parentsOf(tied).some((parent) => isSavedWhole(parent, names)),
  );
  return tiedNames.flatMap(([tied, name]) => {
    const first = saved.find((saved) => saved.name === PREFIX + name);
    return first ? [{ ...first, name: PREFIX + tied }] : [];
  });
}

/**
 * Returns embeddings and heads of the base model. PEFT saves them if an embedding has an adapter
 * (save_embedding_layers).
 */
function basesOf(model: Module): Map<string, Saved> {
  const layers = lorasOf(model);
  const bases = new Map<string, Saved>();
  for (const [name, parameter] of model.namedParameters()) {
    if (!/(^|\.)(embed_tokens|embed_in|wte|wpe|lm_head|embed_out)\.weight$/.test(name)) continue;
    const baseName = layers.has(name.slice(0, -'.weight'.length))
      ? name.replace(/weight$/, 'base_layer.weight')
      : name;
    bases.set(PREFIX + baseName, { name: PREFIX + baseName, parameter, transposed: false });
  }
  for (const [tied, name] of model.tiedNames()) {
    const first =
      bases.get(PREFIX + name) ?? bases.get(PREFIX + name.replace(/weight$/, 'base_layer.weight'));
    if (first) bases.set(PREFIX + tied, { ...first, name: PREFIX + tied });
  }
  return bases;
}

const wantsBias = (bias: string, isWrapped: boolean): boolean =>
  bias === 'all' || (bias === 'lora_only' && isWrapped);

/** Returns the paths of all modules around a parameter. */
function parentsOf(name: string): string[] {
  const keys = name.split('.').slice(0, -1);
  return keys.map((_, i) => keys.slice(0, i + 1).join('.'));
}

/** Maps file names to tensors of the model. Throws DS_CHECKPOINT for a mismatch. */
function match(
  files: WeightFiles,
  expected: readonly Saved[],
  bases: ReadonlyMap<string, Saved>,
): Map<string, Saved> {
  const savedByName = new Map(expected.map((saved) => [saved.name, saved]));
  const matched = new Map<string, Saved>();
  const unexpected: string[] = [];
  for (const [name, entry] of files.tensors) {
    const plain = name.replace('.modules_to_save.', '.').replace(/\.default(?=\.|$)/, '');
    // PEFT's backup of the original module; it is unused.
    if (plain.includes('.original_module.')) continue;
    const saved =
      savedByName.get(plain) ??
      savedByName.get(plain.replace(/\.bias$/, '.base_layer.bias')) ??
      bases.get(plain);
    if (!saved) unexpected.push(name);
    else {
      requireShape(`${files.path}: ${name}`, entry, saved);
      matched.set(name, saved);
    }
  }
  const matchedParameters = new Set([...matched.values()].map(({ parameter }) => parameter));
  const missing = expected
    .filter(({ parameter }) => !matchedParameters.has(parameter))
    .map(({ name }) => name);
  if (missing.length === 0 && unexpected.length === 0) return matched;
  const problems = [
    missing.length > 0 ? `without ${formatNames(missing)}` : '',
    unexpected.length > 0 ? `with unexpected ${formatNames(unexpected)}` : '',
  ];
  throw new DsError({
    code: 'DS_CHECKPOINT',
    op: files.path,
    expected: 'the tensors of the adapter',
    got: `a file ${problems.filter(Boolean).join('; ')}`,
    hint: 'The adapter may belong to another model or to other layers.',
  });
}

function requireShape(
  op: string,
  entry: { shape: readonly number[]; dtype: DType },
  { parameter, transposed }: Saved,
): void {
  const shape = transposed ? [...parameter.shape].reverse() : parameter.shape;
  if (entry.shape.join() === shape.join() && isFloating(entry.dtype)) return;
  const expected = `floating-point numbers [${shape.join(', ')}]`;
  throw new DsError({ code: 'DS_CHECKPOINT', op, expected, got: describe(entry) });
}

/**
 * Throws DS_CHECKPOINT if the files have different values for the two names of a tied parameter.
 * PEFT trains copies of tied modules.
 */
function requireTied(files: WeightFiles, matched: ReadonlyMap<string, Saved>): void {
  const first = new Map<Parameter, string>();
  for (const [name, { parameter }] of matched) {
    const other = first.get(parameter);
    if (other === undefined) first.set(parameter, name);
    else if (!areSame(files, other, name)) {
      throw new DsError({
        code: 'DS_CHECKPOINT',
        op: `${files.path}: ${name}`,
        expected: `the values of ${other}, which is tied to it in this model`,
        got: 'different values',
        hint: 'PEFT untied and trained both: merge them with PEFT into a model with tie_word_embeddings false.',
      });
    }
  }
}

/** Returns whether two tensors of the files have equal dtypes, shapes and bytes. */
function areSame(files: WeightFiles, one: string, other: string): boolean {
  const [a, b] = [one, other].map((name) => files.tensors.get(name));
  if (!a || !b || describe(a) !== describe(b)) return false;
  const total = numel(a.shape) * dtypeSize(a.dtype);
  for (let from = 0; from < total; from += COMPARED) {
    const length = Math.min(COMPARED, total - from);
    const [left, right] = [Buffer.alloc(length), Buffer.alloc(length)];
    files.readNow(one, from, left);
    files.readNow(other, from, right);
    if (!left.equals(right)) return false;
  }
  return true;
}

/** Throws DS_NONFINITE for values beyond f16, before any parameter changes. */
async function requireStorable(
  files: WeightFiles,
  matched: ReadonlyMap<string, Saved>,
): Promise<void> {
  for (const [name, saved] of matched) {
    if (saved.parameter.dtype === 'f16') (await valuesOf(files, name, saved)).release();
  }
}

async function valuesOf(
  files: WeightFiles,
  name: string,
  { parameter, transposed }: Saved,
): Promise<Tensor> {
  const read = await files.read(name);
  const dtype = parameter.dtype === 'f16' ? 'f16' : read.dtype;
  return converted(name, read, { dtype, transposed });
}

async function fill(files: WeightFiles, name: string, saved: Saved): Promise<void> {
  const { parameter } = saved;
  const values = await valuesOf(files, name, saved);
  try {
    parameter.requireWritable('loadAdapter');
    noGrad(() => scope(() => kernels.copy({ in: values.to(parameter.device), out: parameter })));
    markChanged(parameter);
  } finally {
    values.release();
  }
}

function formatNames(names: readonly string[]): string {
  const more = names.length > SHOWN ? ` and ${names.length - SHOWN} more` : '';
  return names.slice(0, SHOWN).join(', ') + more;
}

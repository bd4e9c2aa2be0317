// Several adapters of one model. Active adapters are part of the model; inactive adapters are
// stored outside of it.

import type { Module } from '../nn/module.js';
import type { Parameter } from '../nn/parameter.js';
import { replaceModules } from '../nn/replace-modules.js';
import { requireModule } from '../nn/require-module.js';
import { formatValue } from '../runtime/format-value.js';
import { argumentError } from '../runtime/input-errors.js';
import { requireNoSurplus } from '../runtime/require-type.js';
import { trainerOf } from '../tensor/index.js';
import { DoraLinear } from './dora.js';
import { addAdapters, configOf, lorasOf, requireUnmerged, setConfig } from './lora.js';
import { type LoraLayer, LoraLinear } from './lora-layer.js';
import { type LoraConfig, type LoraOptions, readLoraOptions } from './lora-options.js';
import { LoraSum } from './lora-sum.js';

/** One adapter: its options, and its layers by path. */
export interface AdapterSet {
  readonly config: LoraConfig;
  readonly layers: ReadonlyMap<string, LoraLayer>;
}

/** The adapters of a model. */
interface Sets {
  readonly all: Map<string, AdapterSet>;
  active: readonly string[];
  /** The layers of the active adapters, which are in the model. */
  visibleLayers: ReadonlySet<LoraLayer>;
}

/** PEFT's name of an adapter without a name. */
export const DEFAULT_NAME = 'default';

const known = new WeakMap<Module, Sets>();

/** Returns the adapters of a model. Throws DS_ARGUMENT for a model without adapters. */
function setsOf(op: string, model: Module): Sets {
  requireModule(op, model);
  const layers = lorasOf(model);
  const config = configOf(op, model);
  const sets = known.get(model);
  if (sets && [...layers.values()].every((layer) => sets.visibleLayers.has(layer))) return sets;
  return begin(model, DEFAULT_NAME, { config, layers });
}

function begin(model: Module, name: string, set: AdapterSet): Sets {
  const visibleLayers = new Set(set.layers.values());
  const sets: Sets = { all: new Map([[name, set]]), active: [name], visibleLayers };
  known.set(model, sets);
  return sets;
}

/**
 * Adds an adapter with a name. The first adapter of a model is active; setAdapter() activates
 * others. Call it before initialize(). Returns the model. Throws DS_ARGUMENT as addLora() does, for
 * a name in use, and for biases or modulesToSave if the model has other adapters. Source: PEFT's
 * add_adapter.
 */
export function addAdapter<Model extends Module>(
  model: Model,
  name: string,
  options?: LoraOptions,
): Model;
export function addAdapter<Model extends Module>(
  model: Model,
  name: string,
  options: LoraOptions = {},
  ...surplus: readonly unknown[]
): Model {
  const op = 'addAdapter';
  requireNoSurplus(op, surplus);
  requireModule(op, model);
  addSet(op, model, requireName(op, name), readLoraOptions(op, options));
  return model;
}

/** @internal addAdapter() with checked options. */
export function addSet(op: string, model: Module, name: string, config: LoraConfig): void {
  if (lorasOf(model).size === 0) {
    requireFree(op, model);
    addAdapters(model, config);
    begin(model, name, { config: configOf(op, model), layers: lorasOf(model) });
    return;
  }
  const sets = setsOf(op, model);
  if (sets.all.has(name)) throw argumentError(op, 'a name that no adapter has', formatValue(name));
  for (const item of [config, ...Array.from(sets.all.values(), (set) => set.config)]) {
    requireFactorsOnly(op, item);
  }
  requireChangeable(op, model);
  hide(model, sets);
  try {
    addAdapters(model, config);
    const layers = lorasOf(model);
    replaceModules(model, new Map(Array.from(layers.values(), (layer) => [layer, layer.base])));
    sets.all.set(name, { config: configOf(op, model), layers });
  } finally {
    show(model, sets, sets.active);
  }
}

/**
 * Throws DS_ARGUMENT for trained biases and whole modules: they are trained in place, so all
 * adapters would share them.
 */
function requireFactorsOnly(op: string, { bias, modulesToSave }: LoraConfig): void {
  if (bias !== 'none')
    throw argumentError(`${op} bias`, '"none" if the model has other adapters', bias);
  if (modulesToSave.length === 0) return;
  throw argumentError(
    `${op} modulesToSave`,
    'no modules if the model has other adapters',
    modulesToSave.join(),
  );
}

/**
 * Activates one adapter, or several: their updates add up. Only active adapters are computed,
 * trained, merged and saved. Call it before initialize(), or after engine.destroy(). Throws
 * DS_ARGUMENT for an unknown name, merged adapters, and a model that an engine owns. Source: PEFT's
 * set_adapter.
 */
export function setAdapter(model: Module, name: string | readonly string[]): void;
export function setAdapter(
  model: Module,
  name: string | readonly string[],
  ...surplus: readonly unknown[]
): void {
  const op = 'setAdapter';
  requireNoSurplus(op, surplus);
  const sets = setsOf(op, model);
  const names = [...new Set([name].flat())];
  if (names.length === 0) throw argumentError(op, 'at least one name', 'none');
  for (const name of names) setIn(op, sets, name);
  if (names.length > 1) requireSums(op, sets, names);
  requireChangeable(op, model);
  hide(model, sets);
  show(model, sets, names);
}

/** Throws DS_ARGUMENT for several active adapters of layers that are not plain linear layers. */
function requireSums(op: string, sets: Sets, names: readonly string[]): void {
  for (const name of names) {
    for (const [path, layer] of setIn(op, sets, name).layers) {
      if (layer instanceof LoraLinear && !(layer instanceof DoraLinear)) continue;
      throw argumentError(
        op,
        'adapters of linear layers, without DoRA, as several active ones',
        path,
      );
    }
  }
}

/** Returns the names of the adapters of a model, in the order in which they were added. */
export function adapterNames(model: Module): string[] {
  requireModule('adapterNames', model);
  return lorasOf(model).size === 0 ? [] : [...setsOf('adapterNames', model).all.keys()];
}

/** Returns the names of the active adapters. */
export function activeAdapters(model: Module): string[] {
  requireModule('activeAdapters', model);
  return lorasOf(model).size === 0 ? [] : [...setsOf('activeAdapters', model).active];
}

/**
 * Removes an adapter and frees it. If no other adapter is active, the first of the rest becomes
 * active. Throws DS_ARGUMENT for an unknown name, for the last adapter, and as setAdapter() does.
 * Source: PEFT's delete_adapter.
 */
export function deleteAdapter(model: Module, name: string): void;
export function deleteAdapter(model: Module, name: string, ...surplus: readonly unknown[]): void {
  const op = 'deleteAdapter';
  requireNoSurplus(op, surplus);
  const sets = setsOf(op, model);
  const { layers } = setIn(op, sets, name);
  if (sets.all.size === 1) {
    throw argumentError(
      op,
      'a model with another adapter',
      'the only adapter',
      'Call peft.unload(model) instead.',
    );
  }
  requireChangeable(op, model);
  hide(model, sets);
  sets.all.delete(name);
  const rest = sets.active.filter((text) => text !== name);
  show(model, sets, rest.length > 0 ? rest : [...sets.all.keys()].slice(0, 1));
  for (const layer of layers.values()) for (const parameter of layer.added) parameter.dispose();
}

/** @internal Returns an adapter. Throws DS_ARGUMENT for an unknown name. */
export function adapterSet(op: string, model: Module, name: string): AdapterSet {
  return setIn(op, setsOf(op, model), name);
}

function setIn(op: string, { all }: Sets, name: string): AdapterSet {
  const set = all.get(name);
  if (set) return set;
  const names = [...all.keys()].map((key) => JSON.stringify(key)).join(', ');
  throw argumentError(op, `the name of an adapter (${names})`, formatValue(name));
}

/** Returns the name. Throws DS_ARGUMENT for a name that state names or folders cannot have. */
export function requireName(op: string, name: string): string {
  if (typeof name === 'string' && /^[\w-]{1,64}$/.test(name)) return name;
  throw argumentError(op, 'a name of 1 to 64 letters, digits, "_" and "-"', formatValue(name));
}

function requireChangeable(op: string, model: Module): void {
  requireUnmerged(op, model);
  requireFree(op, model);
}

/** Throws DS_ARGUMENT if an engine has collected the parameters of the active adapters. */
function requireFree(op: string, model: Module): void {
  if (model.parameters().every((parameter) => trainerOf(parameter) === null)) return;
  const got = 'one that an engine of initialize() owns';
  throw argumentError(op, 'a model without an engine', got, 'Call it before initialize().');
}

/** Removes the active adapters from the model. */
function hide(model: Module, sets: Sets): void {
  replaceModules(model, new Map(Array.from(sets.visibleLayers, (layer) => [layer, layer.base])));
}

/** Adds adapters to a model without active adapters. */
function show(model: Module, sets: Sets, names: readonly string[]): void {
  const layers = new Map<Module, Map<string, LoraLayer>>();
  for (const name of names) {
    for (const layer of sets.all.get(name)?.layers.values() ?? []) {
      const ownLayer = layers.get(layer.base) ?? new Map<string, LoraLayer>();
      layers.set(layer.base, ownLayer.set(name, layer));
    }
  }
  const instead = new Map<Module, LoraLayer>();
  for (const [base, adapter] of layers) {
    const [first] = adapter.values();
    const shown =
      adapter.size === 1 && first ? first : new LoraSum(adapter as Map<string, LoraLinear>);
    instead.set(base, shown);
  }
  replaceModules(model, instead);
  sets.active = names;
  sets.visibleLayers = new Set(instead.values());
  const config = sets.all.get(names[0] ?? '')?.config;
  if (config) setConfig(model, config);
  for (const [base, layer] of instead) follow(layer, base);
}

/** Moves an inactive adapter to the device of `base`, and sets its training mode. */
function follow(layer: LoraLayer, base: Module): void {
  layer.settle();
  for (const module of layer.modules()) module.training = base.training;
  for (const parameter of layer.added as Parameter[]) parameter.requireGrad(true);
}

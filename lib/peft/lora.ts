// addLora(), and in-place operations on adapters: merge, unmerge, disable, unload.

import { types } from 'node:util';
import type { Module } from '../nn/module.js';
import { StoredParameter } from '../nn/packed-linear.js';
import type { Parameter } from '../nn/parameter.js';
import { replaceModules } from '../nn/replace-modules.js';
import { requireModule } from '../nn/require-module.js';
import { formatValue } from '../runtime/format-value.js';
import { argumentError } from '../runtime/input-errors.js';
import { requireNoSurplus, requireType } from '../runtime/require-type.js';
import { createDoraAdapter } from './dora.js';
import { LoraExperts } from './lora-experts.js';
import { createAdapter, LoraLayer, type LoraSizes } from './lora-layer.js';
import {
  type LoraConfig,
  type LoraOptions,
  readLoraOptions,
  valueByPattern,
} from './lora-options.js';
import { findExperts, findTargets, isSavedWhole, wholeModules } from './targets.js';

const configs = new WeakMap<Module, LoraConfig>();

/**
 * Freezes `model` and adds low-rank adapters to its layers. Only the adapters and the biases and
 * modules in `options` are trained. The output is unchanged at first, and the model's parameters
 * keep their names. Call it before initialize(), with the same options on every rank. Returns the
 * model. Throws DS_ARGUMENT for invalid options, if no layer matches, if the model already has
 * adapters, and if an engine owns it. Source: PEFT's get_peft_model with a LoraConfig.
 */
export function addLora<Model extends Module>(model: Model, options?: LoraOptions): Model;
export function addLora<Model extends Module>(
  model: Model,
  options: LoraOptions = {},
  ...surplus: readonly unknown[]
): Model {
  requireNoSurplus('addLora', surplus, 'peft.addAdapter() adds adapters with names.');
  requireModule('addLora', model);
  const config = readLoraOptions('addLora', options);
  if (config.ensureWeightTying) requireUntiedTargets(model, config);
  addAdapters(model, config);
  return model;
}

/** Throws DS_ARGUMENT for an adapter of a tied layer: it would not apply to the other layer. */
function requireUntiedTargets(model: Module, config: LoraConfig): void {
  const targets = findTargets(model, config);
  for (const name of [...model.tiedNames()].flat()) {
    const owner = name.slice(0, name.lastIndexOf('.'));
    if (!targets.has(owner)) continue;
    throw argumentError(
      'addLora ensureWeightTying',
      'adapters of layers that are not tied',
      owner,
      `modulesToSave: ["${owner}"] trains both tied layers whole.`,
    );
  }
}

/** Does addLora() with checked options. */
export function addAdapters(model: Module, read: LoraConfig): void {
  if (lorasOf(model).size > 0)
    throw argumentError('addLora', 'a model without adapters', 'a model with adapters');
  const config = read.ensureWeightTying ? addTiedNames(model, read) : read;
  const targets = findTargets(model, config);
  const saved = savedModules(model, config);
  const biases = biasesOf(model, config.bias, [...targets.values()]);
  const instead = new Map<Module, Module>();
  const adapt = config.useDora ? createDoraAdapter : createAdapter;
  for (const [name, base] of targets) instead.set(base, adapt(name, base, sizesOf(name, config)));
  for (const [name, { experts, matrices }] of findExperts(model, config)) {
    const sizes = matrices.map((matrix) => [matrix, sizesOf(`${name}.${matrix}`, config)] as const);
    instead.set(experts, new LoraExperts(experts, new Map(sizes)));
  }
  model.requiresGrad_(false);
  replaceModules(model, instead);
  for (const parameter of [...saved, ...biases]) parameter.requireGrad(true);
  configs.set(model, config);
}

/** @internal Sets the options of the active adapter. */
export const setConfig = (model: Module, config: LoraConfig): void => {
  configs.set(model, config);
};

/** Returns the options of the model's adapters. Throws DS_ARGUMENT for a model without adapters. */
export function configOf(op: string, model: Module): LoraConfig {
  const config = configs.get(model);
  if (config) return config;
  throw argumentError(
    op,
    'a model with adapters',
    'a model without adapters',
    'Call peft.addLora() first.',
  );
}

/** Returns the settings of one layer's adapter. */
export function sizesOf(name: string, config: LoraConfig): LoraSizes {
  const r = valueByPattern(name, config.rankPattern, config.r);
  const alpha = valueByPattern(name, config.alphaPattern, config.loraAlpha);
  return {
    r,
    scaling: alpha / (config.useRslora ? Math.sqrt(r) : r),
    dropout: config.loraDropout,
    init: config.initLoraWeights,
    isWide: config.autocastAdapterDtype,
  };
}

/** Adds the modules that are tied to modules in modulesToSave. */
function addTiedNames(model: Module, config: LoraConfig): LoraConfig {
  const isWhole = (parameter: string): boolean =>
    [...model.namedModules()].some(
      ([name]) => parameter.startsWith(`${name}.`) && isSavedWhole(name, config.modulesToSave),
    );
  const others = [...model.tiedNames()].flatMap((pair) =>
    isWhole(pair[0]) === isWhole(pair[1]) ? [] : pair.filter((name) => !isWhole(name)),
  );
  const modulesToTie = others.map((name) => name.slice(0, name.lastIndexOf('.')));
  return { ...config, modulesToTie: [...new Set(modulesToTie)] };
}

/**
 * Returns the parameters of the modules in modulesToSave. Throws DS_ARGUMENT for a name without a
 * match.
 */
function savedModules(model: Module, config: LoraConfig): Parameter[] {
  const wholes = wholeModules(config);
  const modules = new Map([...model.namedModules()].filter(([name]) => isSavedWhole(name, wholes)));
  for (const wanted of config.modulesToSave) {
    if ([...modules.keys()].some((name) => isSavedWhole(name, [wanted]))) continue;
    throw argumentError(
      'addLora modulesToSave',
      'names of modules',
      `${formatValue(wanted)}, which matches no module`,
    );
  }
  const parameters = [...modules.values()].flatMap((module) => module.parameters());
  requireUntied(model, modules, new Set(parameters));
  requireWhole(model, new Set(parameters));
  return parameters;
}

/** Throws DS_ARGUMENT for a module with packed weights: they cannot be trained. */
function requireWhole(model: Module, parameters: ReadonlySet<Parameter>): void {
  for (const [name, parameter] of model.namedParameters()) {
    if (!parameters.has(parameter) || !(parameter instanceof StoredParameter)) continue;
    throw argumentError(
      'addLora modulesToSave',
      'modules without quantized weights',
      `${name}, a quantized weight`,
      'Name them in the skipModules of peft.quantize() or nn.quantizeModel().',
    );
  }
}

/**
 * Throws DS_ARGUMENT for a tied module: its training would also change the module that it is tied
 * to.
 */
function requireUntied(
  model: Module,
  modules: ReadonlyMap<string, Module>,
  parameters: ReadonlySet<Parameter>,
): void {
  const inside = (name: string): boolean =>
    [...modules.keys()].some((key) => name.startsWith(`${key}.`));
  const first = new Map(model.namedParameters());
  for (const [tied, name] of model.tiedNames()) {
    const shared = first.get(name);
    if (!shared || !parameters.has(shared) || inside(tied) === inside(name)) continue;
    const [savedName, other] = inside(tied) ? [tied, name] : [name, tied];
    throw argumentError(
      `addLora modulesToSave, ${savedName}`,
      'a module without tied parameters',
      `a parameter tied to ${other}`,
      'Name both modules, or set ensureWeightTying.',
    );
  }
}

function biasesOf(
  model: Module,
  bias: LoraConfig['bias'],
  targets: readonly Module[],
): Parameter[] {
  const isBias = ([name]: [string, Parameter]): boolean =>
    name === 'bias' || name.endsWith('.bias');
  const among = { none: [], all: [model], lora_only: targets }[bias];
  return among.flatMap((module) =>
    [...module.namedParameters()].filter(isBias).map(([, parameter]) => parameter),
  );
}

/** Returns the layers with adapters by path. */
export function lorasOf(model: Module): Map<string, LoraLayer> {
  requireModule('lorasOf', model);
  const loras = new Map<string, LoraLayer>();
  for (const [name, module] of model.namedModules()) {
    if (module instanceof LoraLayer) loras.set(name, module);
  }
  return loras;
}

/**
 * Adds every adapter's update to the weight of its layer, in f32. The output changes only by
 * rounding, and forward takes no extra time. Call it before initialize(), or on all ranks inside
 * zero.GatheredParameters with a modifierRank. Throws DS_ARGUMENT, before any change, if an engine
 * owns the weights, or if another module shares a weight (a tied head). Source: PEFT's
 * merge_adapter.
 */
export function merge(model: Module): void;
export function merge(model: Module, ...surplus: readonly unknown[]): void {
  requireNoSurplus('merge', surplus);
  const layers = requireLayers('merge', model);
  requireAlone(model);
  for (const layer of layers) layer.merge();
}

/** Throws DS_ARGUMENT if other modules read a weight: a merge would also change their outputs. */
function requireAlone(model: Module): void {
  const shared = sharedTarget(model);
  if (!shared) return;
  throw argumentError(
    `merge ${shared.name}`,
    'a weight that no other module reads',
    `one that ${shared.other} also reads, without the update`,
    'Keep this adapter unmerged: use peft.saveAdapter() and peft.loadAdapter().',
  );
}

/** Returns an adapter layer with a weight that another module shares, or null. */
export function sharedTarget(model: Module): { name: string; other: string } | null {
  const readers = new Map<Parameter, string[]>();
  for (const [path, module] of model.namedModules()) {
    for (const [key, parameter] of module.namedParameters()) {
      if (!key.includes('.')) readers.set(parameter, [...(readers.get(parameter) ?? []), path]);
    }
  }
  for (const [name, { weights }] of lorasOf(model)) {
    const others = weights.flatMap((weight) => readers.get(weight) ?? []);
    const other = others.find((path) => path !== name && !path.startsWith(`${name}.`));
    if (other !== undefined) return { name, other };
  }
  return null;
}

/**
 * @internal Throws DS_ARGUMENT while adapters are merged: files with merged weights and adapters
 * would apply updates twice.
 */
export function requireUnmerged(op: string, model: Module): void {
  const merged = [...lorasOf(model)].find(([, { isMerged }]) => isMerged);
  if (!merged) return;
  const hint = 'Call peft.unmerge(model) first.';
  throw argumentError(op, 'unmerged adapters', `an adapter merged into ${merged[0]}`, hint);
}

/**
 * @internal Returns the names of parameters of merged adapters, whose updates the weights already
 * contain.
 */
export function mergedNames(model: Module): ReadonlySet<string> {
  const merged = [...lorasOf(model).values()].filter(({ isMerged }) => isMerged);
  const added = new Set(merged.flatMap((layer) => layer.added));
  const names = [...model.namedParameters()].filter(([, parameter]) => added.has(parameter));
  return new Set(names.map(([name]) => name));
}

/** Subtracts the updates of merge() from the weights. Source: PEFT's unmerge_adapter. */
export function unmerge(model: Module): void {
  for (const layer of requireLayers('unmerge', model)) layer.unmerge();
}

/**
 * Runs `body` without adapters, until its promise settles if it returns one. Source: PEFT's
 * disable_adapter.
 */
export function withoutAdapters<Result>(model: Module, body: () => Result): Result {
  requireModule('withoutAdapters', model);
  requireType('withoutAdapters', body, 'function');
  const config = configOf('withoutAdapters', model);
  if (config.modulesToSave.length > 0 || config.bias !== 'none') {
    const got = 'modules or biases that were trained in place';
    throw argumentError(
      'withoutAdapters',
      'adapters as the only trained parameters',
      got,
      'Load the base model separately.',
    );
  }
  const layers = requireLayers('withoutAdapters', model);
  const merged = layers.find(({ isMerged }) => isMerged);
  if (merged)
    throw argumentError(
      'withoutAdapters',
      'unmerged adapters',
      'merged adapters',
      'Call peft.unmerge() first.',
    );
  const restore = (): void => layers.forEach(restoreAdapter);
  layers.forEach(detachAdapter);
  let isLater = false;
  try {
    const result = body();
    if (!types.isPromise(result)) return result;
    isLater = true;
    return result.finally(restore) as Result;
  } finally {
    if (!isLater) restore();
  }
}

/** Disabled layers: the number of running bodies, and the state before the first body. */
const detached = new WeakMap<LoraLayer, { bodies: number; wasEnabled: boolean }>();

function detachAdapter(layer: LoraLayer): void {
  const { bodies, wasEnabled } = detached.get(layer) ?? { bodies: 0, wasEnabled: layer.isEnabled };
  detached.set(layer, { bodies: bodies + 1, wasEnabled });
  layer.isEnabled = false;
}

/** Restores an adapter after the last of the concurrent bodies, which may end in any order. */
function restoreAdapter(layer: LoraLayer): void {
  const { bodies = 1, wasEnabled = true } = detached.get(layer) ?? {};
  if (bodies > 1) detached.set(layer, { bodies: bodies - 1, wasEnabled });
  else {
    detached.delete(layer);
    layer.isEnabled = wasEnabled;
  }
}

/**
 * Removes the adapters. Merged updates stay in the weights; others are lost. Returns the model.
 * Source: PEFT's merge_and_unload and unload.
 */
export function unload<Model extends Module>(model: Model): Model {
  const layers = requireLayers('unload', model);
  for (const layer of layers) layer.allowLoads();
  replaceModules(model, new Map(layers.map((layer) => [layer, layer.base])));
  configs.delete(model);
  return model;
}

function requireLayers(op: string, model: Module): LoraLayer[] {
  requireModule(op, model);
  const layers = [...lorasOf(model).values()];
  if (layers.length > 0) return layers;
  throw argumentError(
    op,
    'a model with adapters',
    'a model without adapters',
    'Call peft.addLora() first.',
  );
}

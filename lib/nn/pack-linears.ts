// Replaces the linear layers of a model by layers that store their weights in fewer bits.

import { formatValue } from '../runtime/format-value.js';
import { argumentError } from '../runtime/input-errors.js';
import { Linear } from './linear.js';
import type { Module } from './module.js';
import type { Parameter } from './parameter.js';
import { replaceModules } from './replace-modules.js';

/** Names of the last module of models, which maps hidden states to logits. */
export const HEADS: readonly string[] = ['lm_head', 'embed_out', 'score', 'classifier'];

/**
 * Modules that must not be replaced by a layer with another forward: models read their weights
 * directly, without a call of forward().
 */
export const READ_DIRECTLY: readonly string[] = ['lm_head', 'embed_out', 'wpe'];

/** Returns whether one of `names` is the path of a module, or the end of its path. */
export const matchesPath = (path: string, names: readonly string[]): boolean =>
  names.some((name) => path === name || path.endsWith(`.${name}`));

/** Returns the names, or ends of names, of layers to skip. Throws DS_ARGUMENT for other values. */
export function readSkipModules(op: string, given: unknown): readonly string[] {
  const isName = (value: unknown): boolean => typeof value === 'string' && value !== '';
  if (Array.isArray(given) && given.every(isName)) return given;
  const [expected, got] = ['a list of names', formatValue(given)];
  throw argumentError(`${op} skipModules`, expected, got);
}

/** A layer with a weight of its own. */
type Weighted = Module & { readonly weight: Parameter };

/** The layers to pack, and their replacement. */
interface Packing<Layer extends Weighted> {
  /** The name in errors. */
  op: string;
  /** Returns whether a module is a layer of this kind. */
  isLayer(module: Module): module is Layer;
  /** Names, or ends of names, of layers to skip. */
  skipModules: readonly string[];
  /**
   * Whether the caller has already packed other layers, so that a model without layers to pack is
   * no error.
   */
  isBegun?: boolean;
  /** Creates the replacement of a layer. */
  pack(layer: Layer, path: string): Module;
}

/** Returns whether a module is a linear layer, with or without an activation. */
export const isLinear = (module: Module): module is Linear => module instanceof Linear;

/**
 * Packs one layer after the other and frees each original, so only one exists in full at a time.
 * Throws DS_ARGUMENT if an engine owns the model, or if no layer is linear.
 */
export function packLinears<Layer extends Weighted>(model: Module, packing: Packing<Layer>): void {
  const { op, isLayer, skipModules, isBegun = false, pack } = packing;
  const instead = new Map<Module, Module>();
  const shared = sharedParameters(model);
  for (const [path, module] of model.namedModules()) {
    if (!isLayer(module) || matchesPath(path, skipModules)) continue;
    module.weight.requireWritable(op);
    instead.set(module, pack(module, path));
    if (!shared.has(module.weight)) module.weight.dispose();
  }
  if (instead.size === 0 && !isBegun) {
    const expected = 'a model with linear layers';
    throw argumentError(op, expected, 'only skipped linear layers');
  }
  replaceModules(model, instead);
}

/** Returns the parameters that several modules have. */
function sharedParameters(model: Module): ReadonlySet<Parameter> {
  const named = new Map(model.namedParameters());
  return new Set([...model.tiedNames().values()].flatMap((name) => named.get(name) ?? []));
}

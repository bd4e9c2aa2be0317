// quantize(): stores the linear weights of a model in 4 bits.

import type { DsError } from '../errors.js';
import { Experts } from '../nn/experts.js';
import type { Linear } from '../nn/linear.js';
import type { Module } from '../nn/module.js';
import { HEADS, isLinear, matchesPath, packLinears, readSkipModules } from '../nn/pack-linears.js';
import { replaceModules } from '../nn/replace-modules.js';
import { requireModule } from '../nn/require-module.js';
import { argumentError } from '../runtime/input-errors.js';
import { namesOf, readOptions } from '../runtime/options.js';
import { lorasOf } from './lora.js';
import { NF4Experts } from './nf4-experts.js';
import { NF4Linear, type NF4Options, readNF4Options } from './nf4-linear.js';

/** Options of quantize(). */
export interface QuantizeOptions extends NF4Options {
  /** Names or last name components of layers to skip. Default: the head. */
  skipModules?: readonly string[];
  /**
   * Whether to quantize the matrices of experts too. Such a model can be trained by adapters, but
   * not saved as a folder. Default: false.
   */
  experts?: boolean;
}

/**
 * Stores the weights of all linear layers of `model`, except `skipModules`, in NF4 and freezes
 * them. Materializes one layer at a time. For QLoRA, call addLora() next. Call it before
 * initialize(). Returns the model. Throws DS_ARGUMENT if an engine owns the model, if it has
 * adapters, and if no layer is linear. Throws DS_NONFINITE for weights that are not finite. Source:
 * transformers' BitsAndBytesConfig with load_in_4bit.
 */
export function quantize<Model extends Module>(model: Model, given: QuantizeOptions = {}): Model {
  requireModule('quantize', model);
  const named = readOptions('quantize', given, namesOf.QuantizeOptions);
  const { skipModules: skip = HEADS, experts: withExperts = false, ...rest } = named;
  const skipModules = readSkipModules('quantize', skip);
  const options = readNF4Options('quantize', rest);
  if (lorasOf(model).size > 0)
    throw misusedError('a model without adapters', 'a model with adapters');
  const pack = (layer: Linear): NF4Linear => NF4Linear.from(layer, options);
  const isBegun = withExperts;
  packLinears(model, { op: 'quantize', isLayer: isLinear, skipModules, isBegun, pack });
  if (withExperts) packExperts(model, skipModules, (experts) => NF4Experts.from(experts, options));
  return model;
}

/** Replaces experts, one layer after the other. Throws DS_ARGUMENT for a model without experts. */
function packExperts(
  model: Module,
  skipModules: readonly string[],
  pack: (experts: Experts) => NF4Experts,
): void {
  const instead = new Map<Module, Module>();
  for (const [path, module] of model.namedModules()) {
    if (module instanceof Experts && !matchesPath(path, skipModules))
      instead.set(module, pack(module));
  }
  if (instead.size > 0) replaceModules(model, instead);
  else throw argumentError('quantize experts', 'a model with experts', 'a model without experts');
}

/** @internal Does quantize() without allocating parameters, to count bytes. */
export function quantizeUnmade<Model extends Module>(model: Model): Model {
  const pack = (layer: Linear): NF4Linear => NF4Linear.createUnfilled(layer);
  packLinears(model, { op: 'quantize', isLayer: isLinear, skipModules: HEADS, pack });
  return model;
}

function misusedError(expected: string, got: string): DsError {
  const hint = 'Quantize first, then addLora().';
  return argumentError('quantize', expected, got, hint);
}

// quantizeModel: stores the linear layers of a model in 8 or 4 bits for computation.
import { Fp8Linear } from '../nn/fp8-linear.js';
import type { Linear } from '../nn/linear.js';
import type { Module } from '../nn/module.js';
import { HEADS, isLinear, matchesPath, packLinears, readSkipModules } from '../nn/pack-linears.js';
import {
  QuantizedLinear,
  type QuantizedOptions,
  readQuantizedOptions,
} from '../nn/quantized-linear.js';
import { replaceModules } from '../nn/replace-modules.js';
import { lorasOf } from '../peft/index.js';
import { formatValue } from '../runtime/format-value.js';
import { argumentError } from '../runtime/input-errors.js';
import { TiedHead } from './tied-head.js';

/** Options of quantizeModel(). */
export interface QuantizeModelOptions extends QuantizedOptions {
  /**
   * "int": codes are integers, and activations stay as they are. "e4m3": codes are FP8, 8 bits with
   * a scale per output. Products round activations to FP8 too (nn.Fp8Linear). Default: "int".
   */
  format?: 'int' | 'e4m3';
  /**
   * Bits of the head: 8 with a scale per token, or 4 in groups as the rest. A tied head gets its
   * own weight; the embedding stays. Default: null: unchanged.
   */
  head?: 8 | 4 | null;
  /** Names, or suffixes of names, of layers that stay unchanged. Default: only the head. */
  skipModules?: readonly string[];
}

/**
 * Quantizes the weights of all linear layers of `model` except the head to 8 or 4 bits, each within
 * half a step of its value. Embeddings stay unchanged. One layer at a time exists in full. For
 * inference, or with peft.addLora(); docs/quantization.md has the costs. Before initialize().
 * Returns the model. Throws DS_ARGUMENT for invalid options, for a model with an engine or with
 * adapters, and if no layer is linear; DS_NONFINITE for weights that are not finite.
 */
export function quantizeModel<Model extends Module>(
  model: Model,
  given: QuantizeModelOptions,
): Model {
  const op = 'quantizeModel';
  const { head = null, ...others } = Object(given) as QuantizeModelOptions;
  const { skipModules: skip = [], format = 'int', ...formatOptions } = others;
  const skipModules = readSkipModules(op, skip);
  const options = readQuantizedOptions(op, formatOptions);
  requireFormat(op, format, options);
  if (head !== null && head !== 8 && head !== 4) {
    throw argumentError(`${op} head`, '8, 4 or null', formatValue(head));
  }
  if (lorasOf(model).size > 0) {
    throw argumentError(
      op,
      'a model without adapters',
      'a model with adapters',
      'Quantize first, then addLora().',
    );
  }
  const ofHead =
    head === null ? null : { bits: head, groupSize: head === 8 ? null : options.groupSize };
  const skipped = ofHead ? skipModules : [...HEADS, ...skipModules];
  const isBegun = ofHead !== null && untieHeads(model, ofHead, skipModules);
  const pack = (layer: Linear, path: string): Module => {
    if (ofHead && matchesPath(path, HEADS)) return QuantizedLinear.from(layer, ofHead);
    return format === 'e4m3' ? Fp8Linear.from(layer) : QuantizedLinear.from(layer, options);
  };
  packLinears(model, { op, isLayer: isLinear, skipModules: skipped, isBegun, pack });
  return model;
}

/** Throws DS_ARGUMENT for an unknown format, or for FP8 of other bits or with groups. */
function requireFormat(
  op: string,
  format: unknown,
  { bits, groupSize }: Required<QuantizedOptions>,
): void {
  if (format === 'int') return;
  if (format !== 'e4m3')
    throw argumentError(`${op} format`, '"int" or "e4m3"', formatValue(format));
  if (bits === 8 && groupSize === null) return;
  const got = `${bits} bits, groupSize ${groupSize}`;
  throw argumentError(`${op} format "e4m3"`, '8 bits without groupSize', got);
}

/** Gives heads that are tied to the embedding their own weight. Returns whether there was one. */
function untieHeads(
  model: Module,
  options: Required<QuantizedOptions>,
  skipModules: readonly string[],
): boolean {
  const instead = new Map<Module, Module>();
  for (const [path, module] of model.namedModules()) {
    if (!(module instanceof TiedHead) || matchesPath(path, skipModules)) continue;
    module.weight.requireWritable('quantizeModel');
    const parts = { ...options, bias: null, hasGelu: false };
    instead.set(module, QuantizedLinear.of(module.weight, parts));
  }
  replaceModules(model, instead);
  return instead.size > 0;
}

// Ends compression: sets masked elements to 0 or removes them, keeps rounded weights, and restores
// plain layers.

import { isDeepStrictEqual } from 'node:util';
import type { DsError } from '../errors.js';
import { zeros } from '../nn/initializers.js';
import { Linear, LinearGelu } from '../nn/linear.js';
import type { Module } from '../nn/module.js';
import type { Parameter } from '../nn/parameter.js';
import { replaceModules } from '../nn/replace-modules.js';
import { argumentError } from '../runtime/input-errors.js';
import { leading } from '../runtime/required.js';
import { indexSelect, noGrad, scope, Tensor } from '../tensor/index.js';
import {
  type Compression,
  compressionOf,
  forgetCompression,
  isCompressionEnabled,
} from './compress.js';
import { CompressedLinear, listLinears, StepClock } from './compressed-layers.js';
import { computeCuts, type KeptIndices } from './cut-layers.js';
import { type CompressionSection, FINISHED, type Values } from './technique.js';

/**
 * Writes the values of the last step into the layers of `model`, and restores the plain layers.
 * Layers of related_modules become smaller. Quantized inputs stay quantized. Throws DS_ARGUMENT for
 * a model that `section` did not compress or that an engine owns, DS_CONFIG if layers do not fit
 * each other. Source: DeepSpeed's redundancy_clean.
 */
export function cleanCompression(model: Module, section: CompressionSection): void {
  const compression = compressionOf(model);
  if (!compression && !isCompressionEnabled(section)) return;
  if (!compression) throw misusedError('a model prepared by initCompression()', 'another model');
  if (!isDeepStrictEqual(compression.section, section)) {
    throw misusedError('the section passed to initCompression()', 'another section');
  }
  for (const parameter of model.parameters()) parameter.requireWritable('redundancyClean');
  noGrad(() => scope(() => cleanLayers(model, compression)));
  forgetCompression(model);
}

function cleanLayers(model: Module, compression: Compression): void {
  const cuts = computeCuts(model, compression);
  const replacements = new Map<Module, Module>();
  const written = new Set<Parameter>();
  for (const [name, layer] of compression.layers) {
    const { base } = layer;
    const cut = cuts.get(name);
    if (cut && base instanceof Linear) {
      replacements.set(
        layer,
        keepInputQuantization(layer, shrinkLinear(base, layer.valuesAt(FINISHED), cut)),
      );
      continue;
    }
    writeValues(base, layer.valuesAt(FINISHED), written);
    replacements.set(layer, keepInputQuantization(layer, base));
  }
  for (const [name, layer] of listLinears(model)) {
    const cut = cuts.get(name);
    if (cut && !compression.layers.has(name))
      replacements.set(layer, shrinkLinear(layer, layer, cut));
  }
  replaceModules(model, replacements);
}

/** Returns `plain`, which quantizes its inputs if `layer` does. */
function keepInputQuantization(layer: Module, plain: Module): Module {
  plain.training = layer.training;
  if (!(layer instanceof CompressedLinear && layer.inputs)) return plain;
  const wrapped = new CompressedLinear(plain as Linear, new StepClock());
  wrapped.inputs = { ...layer.inputs, offset: 0 };
  return wrapped;
}

/** Writes values to a layer. A shared weight is written once, so that it is not rounded again. */
function writeValues(
  base: { weight: Parameter; bias?: Parameter | null },
  { weight, bias }: Values,
  written: Set<Parameter>,
): void {
  if (weight !== base.weight && !written.has(base.weight)) base.weight.copy_(weight);
  written.add(base.weight);
  if (bias && base.bias && bias !== base.bias) base.bias.copy_(bias);
}

/** Returns a layer of the remaining rows and columns. */
function shrinkLinear(
  base: Linear,
  { weight, bias }: Values,
  { rows, columns }: KeptIndices,
): Linear {
  const [outputs, inputs] = leading(base.weight.shape, 2);
  const Class = base instanceof LinearGelu ? LinearGelu : Linear;
  const shrunk = new Class(columns?.length ?? inputs, rows?.length ?? outputs, {
    bias: base.bias !== null,
    weightInit: zeros,
    biasInit: zeros,
  });
  const { dtype, device } = base.weight;
  for (const parameter of shrunk.parameters()) parameter.moveTo(device, dtype);
  shrunk.weight.copy_(selectIndices(selectIndices(weight, 0, rows), 1, columns));
  shrunk.weight.requiresGrad = base.weight.requiresGrad;
  if (bias && shrunk.bias && base.bias) {
    shrunk.bias.copy_(selectIndices(bias, 0, rows));
    shrunk.bias.requiresGrad = base.bias.requiresGrad;
  }
  shrunk.training = base.training;
  return shrunk;
}

function selectIndices(values: Tensor, dim: number, numbers: readonly number[] | null): Tensor {
  if (!numbers) return values;
  const options = { shape: [numbers.length], dtype: 'i64', device: values.device } as const;
  return indexSelect(values, dim, Tensor.from([...numbers], options));
}

const misusedError = (expected: string, got: string): DsError =>
  argumentError('redundancyClean', expected, got);

// Ends compression: masked elements become 0 or are removed, rounded weights become the weights,
// and plain layers return.

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
import { type Compression, compressionOf, forgetCompression, isOn } from './compress.js';
import { CompressedLinear, linearsOf, StepClock } from './compressed-layers.js';
import { cutsOf, type KeptIndices } from './cut-layers.js';
import { type CompressionSection, FINISHED, type Values } from './technique.js';

/**
 * Writes the values of the last step into the layers of `model`, and restores the plain layers.
 * Layers of related_modules become smaller. Quantized inputs stay quantized. Throws DS_ARGUMENT for
 * a model that `section` did not compress or that an engine owns, DS_CONFIG if layers do not fit
 * each other. Source: DeepSpeed's redundancy_clean.
 */
export function clean(model: Module, section: CompressionSection): void {
  const done = compressionOf(model);
  if (!done && !isOn(section)) return;
  if (!done) throw misusedError('a model prepared by initCompression()', 'another model');
  if (!isDeepStrictEqual(done.section, section)) {
    throw misusedError('the section passed to initCompression()', 'another section');
  }
  for (const parameter of model.parameters()) parameter.requireWritable('redundancyClean');
  noGrad(() => scope(() => cleanLayers(model, done)));
  forgetCompression(model);
}

function cleanLayers(model: Module, done: Compression): void {
  const cuts = cutsOf(model, done);
  const instead = new Map<Module, Module>();
  const written = new Set<Parameter>();
  for (const [name, layer] of done.layers) {
    const { base } = layer;
    const cut = cuts.get(name);
    if (cut && base instanceof Linear) {
      instead.set(layer, withInputs(layer, smaller(base, layer.valuesAt(FINISHED), cut)));
      continue;
    }
    write(base, layer.valuesAt(FINISHED), written);
    instead.set(layer, withInputs(layer, base));
  }
  for (const [name, layer] of linearsOf(model)) {
    const cut = cuts.get(name);
    if (cut && !done.layers.has(name)) instead.set(layer, smaller(layer, layer, cut));
  }
  replaceModules(model, instead);
}

/** Returns `plain`; its inputs are quantized if `layer` quantizes its own. */
function withInputs(layer: Module, plain: Module): Module {
  plain.training = layer.training;
  if (!(layer instanceof CompressedLinear && layer.inputs)) return plain;
  const made = new CompressedLinear(plain as Linear, new StepClock());
  made.inputs = { ...layer.inputs, offset: 0 };
  return made;
}

/** A shared weight is written once: rounded values must not be rounded again. */
function write(
  base: { weight: Parameter; bias?: Parameter | null },
  { weight, bias }: Values,
  written: Set<Parameter>,
): void {
  if (weight !== base.weight && !written.has(base.weight)) base.weight.copy_(weight);
  written.add(base.weight);
  if (bias && base.bias && bias !== base.bias) base.bias.copy_(bias);
}

/** Returns a layer of the remaining rows and columns. */
function smaller(base: Linear, { weight, bias }: Values, { rows, columns }: KeptIndices): Linear {
  const [outputs, inputs] = leading(base.weight.shape, 2);
  const Class = base instanceof LinearGelu ? LinearGelu : Linear;
  const made = new Class(columns?.length ?? inputs, rows?.length ?? outputs, {
    bias: base.bias !== null,
    weightInit: zeros,
    biasInit: zeros,
  });
  const { dtype, device } = base.weight;
  for (const parameter of made.parameters()) parameter.moveTo(device, dtype);
  made.weight.copy_(chooseValues(chooseValues(weight, 0, rows), 1, columns));
  made.weight.requiresGrad = base.weight.requiresGrad;
  if (bias && made.bias && base.bias) {
    made.bias.copy_(chooseValues(bias, 0, rows));
    made.bias.requiresGrad = base.bias.requiresGrad;
  }
  made.training = base.training;
  return made;
}

function chooseValues(values: Tensor, dim: number, numbers: readonly number[] | null): Tensor {
  if (!numbers) return values;
  const options = { shape: [numbers.length], dtype: 'i64', device: values.device } as const;
  return indexSelect(values, dim, Tensor.from([...numbers], options));
}

const misusedError = (expected: string, got: string): DsError =>
  argumentError('redundancyClean', expected, got);

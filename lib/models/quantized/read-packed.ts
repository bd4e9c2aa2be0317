// Reads layers of GPTQ, AWQ and compressed-tensors folders, in any layout, as QuantizedLinear.

import type { WeightFiles } from '../../checkpoint/index.js';
import { DsError } from '../../errors.js';
import { Linear, LinearGelu } from '../../nn/linear.js';
import type { Module } from '../../nn/module.js';
import type { Parameter } from '../../nn/parameter.js';
import { QuantizedLinear } from '../../nn/quantized-linear.js';
import { replaceModules } from '../../nn/replace-modules.js';
import type { ReadQuantized } from '../../peft/index.js';
import { type DType, isFloating } from '../../runtime/dtype.js';
import { leading, required } from '../../runtime/required.js';
import { describe } from '../../runtime/view.js';
import { held, noGrad, scope, Tensor } from '../../tensor/index.js';
import type { Layout } from '../load-weights.js';
import { TiedHead } from '../tied-head.js';
import { convertCodes, convertZeros, inputOrder } from './codes.js';
import type { FolderScheme, LayerScheme } from './scheme.js';

/** Suffixes of a layer's names in the files. */
interface NameSuffixes {
  packed: string;
  scale: string;
  zero: string;
  index: string;
  /** Redundant entries of the files. */
  rest: readonly string[];
}

const NAMES: Readonly<Record<FolderScheme['method'], NameSuffixes>> = {
  gptq: { packed: 'qweight', scale: 'scales', zero: 'qzeros', index: 'g_idx', rest: [] },
  awq: { packed: 'qweight', scale: 'scales', zero: 'qzeros', index: 'g_idx', rest: [] },
  'compressed-tensors': {
    packed: 'weight_packed',
    scale: 'weight_scale',
    zero: 'weight_zero_point',
    index: 'weight_g_idx',
    rest: ['weight_shape'],
  },
};

/** A layer of the model, and its name in the files. */
interface PackedTarget {
  layer: Linear | TiedHead;
  path: string;
  stored: string;
}

/**
 * Replaces each layer that `files` have packed by a QuantizedLinear with its values. A later load
 * reads the bias. Throws DS_CHECKPOINT for a layer that the model lacks, and for tensors of other
 * sizes.
 */
export async function readPacked(
  model: Module,
  files: WeightFiles,
  layout: Layout,
  scheme: FolderScheme,
): Promise<ReadQuantized> {
  const ends = NAMES[scheme.method];
  const [consumed, filled] = [new Set<string>(), new Set<string>()];
  const instead = new Map<Module, Module>();
  for (const target of findPacked(model, files, layout, `.${ends.packed}`)) {
    const layer = await readLayer(target, files, ends, scheme);
    instead.set(target.layer, layer);
    for (const end of [ends.packed, ends.scale, ends.zero, ends.index, ...ends.rest]) {
      consumed.add(`${target.stored}.${end}`);
    }
    const [bias, outputs] = [`${target.stored}.bias`, required(target.layer.weight.shape[0])];
    if (!layer.bias && (await hasZeroBias(files, bias, outputs))) consumed.add(bias);
    for (const [name, parameter] of layer.namedParameters()) {
      if (parameter !== layer.bias) filled.add(`${target.path}.${name}`);
    }
  }
  replaceModules(model, instead);
  return { consumed, filled };
}

function findPacked(
  model: Module,
  files: WeightFiles,
  layout: Layout,
  end: string,
): PackedTarget[] {
  const layers = new Map(model.namedModules());
  const names = [...files.tensors.keys()].filter((name) => name.endsWith(end));
  return names.map((name) => {
    const stored = name.slice(0, -end.length);
    const path = layout.nameOf(`${stored}.weight`)?.slice(0, -'.weight'.length) ?? stored;
    const layer = layers.get(path);
    if (layer instanceof Linear || layer instanceof TiedHead) return { layer, path, stored };
    throw damagedError(
      `${files.path}: ${name}`,
      'a linear layer of the model',
      `${path}, which is not a linear layer`,
    );
  });
}

async function readLayer(
  { layer, stored }: PackedTarget,
  files: WeightFiles,
  ends: NameSuffixes,
  folder: FolderScheme,
): Promise<QuantizedLinear> {
  const shape = leading(layer.weight.shape, 2);
  const scheme = folder.schemeOf(stored);
  const sizes = expectedShapes(shape, scheme, folder.method);
  const read = async (end: string, shape: readonly number[], dtype: DType | null) =>
    readTensor(files, `${stored}.${end}`, shape, dtype);
  const tensors: Tensor[] = [];
  try {
    const scale = await read(ends.scale, sizes.scale, null);
    tensors.push(scale);
    const packed = await read(ends.packed, sizes.packed, 'i32');
    tensors.push(packed);
    const zero = scheme.hasZeros ? await read(ends.zero, sizes.zero, 'i32') : null;
    if (zero) tensors.push(zero);
    const hasIndex = files.tensors.has(`${stored}.${ends.index}`);
    const index = hasIndex ? await read(ends.index, [shape[1]], 'i32') : null;
    if (index) tensors.push(index);
    const order =
      index && inputOrder(`${files.path}: ${stored}.${ends.index}`, index, scheme.groupSize);
    const zeros = zero && convertZeros(zero, folder, scheme.bits, shape[0]);
    const hasGelu = layer instanceof LinearGelu;
    const quantized = new QuantizedLinear(
      {
        bits: scheme.bits,
        groupSize: scheme.groupSize,
        shape,
        hasGelu,
        scaleDType: scale.dtype,
        hasZeros: zeros !== null,
        isReordered: order !== null,
      },
      layer instanceof Linear ? layer.bias : null,
    );
    fillParameter(quantized.weight_packed, () =>
      convertCodes(packed, folder.method, { shape, bits: scheme.bits, order }),
    );
    const isAcross = folder.method !== 'compressed-tensors';
    fillParameter(quantized.weight_scale, () =>
      isAcross ? scale.transpose(0, 1).contiguous() : scale.clone(),
    );
    if (zeros)
      fillParameter(required(quantized.weight_zero_point), () =>
        Tensor.from(zeros.values, { shape: zeros.shape }),
      );
    if (order) fillParameter(required(quantized.weight_order), () => Tensor.from(order));
    return quantized;
  } finally {
    for (const tensor of tensors) tensor.release();
  }
}

/**
 * Returns whether the files have `name` for a layer without a bias: old versions of AutoGPTQ wrote
 * zeros. Throws DS_CHECKPOINT for other values.
 */
async function hasZeroBias(files: WeightFiles, name: string, outputs: number): Promise<boolean> {
  if (!files.tensors.has(name)) return false;
  const values = await readTensor(files, name, [outputs], null);
  const isZero = values.toArray().every((value) => value === 0);
  values.release();
  if (isZero) return true;
  const expected = 'zeros, because the layer of the model has no bias';
  throw damagedError(`${files.path}: ${name}`, expected, 'other values');
}

/** The required shapes of the files' tensors. */
function expectedShapes(
  [outputs, inputs]: readonly [number, number],
  { bits, groupSize }: LayerScheme,
  method: FolderScheme['method'],
): { packed: number[]; scale: number[]; zero: number[] } {
  const countWords = (count: number): number => Math.ceil((count * bits) / 32);
  const groups = Math.ceil(inputs / (groupSize ?? inputs));
  if (method === 'compressed-tensors') {
    return {
      packed: [outputs, countWords(inputs)],
      scale: [outputs, groups],
      zero: [countWords(outputs), groups],
    };
  }
  const packed = method === 'gptq' ? [countWords(inputs), outputs] : [inputs, countWords(outputs)];
  return { packed, scale: [groups, outputs], zero: [groups, countWords(outputs)] };
}

/** `dtype` null: a floating one. The caller releases it. */
async function readTensor(
  files: WeightFiles,
  name: string,
  shape: readonly number[],
  dtype: DType | null,
): Promise<Tensor> {
  const entry = files.tensors.get(name);
  const isSame =
    entry?.shape.join() === shape.join() &&
    (dtype === null ? isFloating(entry.dtype) && entry.dtype !== 'f64' : entry.dtype === dtype);
  if (isSame) return files.read(name);
  const expectedText =
    dtype === null ? `[${shape.join(', ')}] floating` : describe({ shape, dtype });
  const got = entry ? describe(entry) : 'no such tensor';
  throw damagedError(`${files.path}: ${name}`, expectedText, got);
}

/** Sets the parameter to the values that `make` creates on the CPU. */
function fillParameter(parameter: Parameter, make: () => Tensor): void {
  const values = held(() => noGrad(() => scope(make)));
  parameter.place(values);
  values.release();
}

function damagedError(op: string, expected: string, got: string): DsError {
  return new DsError({ code: 'DS_CHECKPOINT', op, expected, got });
}

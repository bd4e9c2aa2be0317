// Reads weights of GPTQ, AWQ and compressed-tensors folders, in any layout. Linear layers become
// QuantizedLinear. Other matrices, such as experts, become plain values.

import type { WeightFiles } from '../../checkpoint/index.js';
import { Linear, LinearGelu } from '../../nn/linear.js';
import type { Module } from '../../nn/module.js';
import type { Parameter } from '../../nn/parameter.js';
import { QuantizedLinear } from '../../nn/quantized-linear.js';
import { replaceModules } from '../../nn/replace-modules.js';
import type { ReadQuantized } from '../../peft/index.js';
import { leading, required } from '../../runtime/required.js';
import { describe } from '../../runtime/view.js';
import { held, noGrad, scope, type Tensor } from '../../tensor/index.js';
import type { Layout } from '../load-weights.js';
import { TiedHead } from '../tied-head.js';
import { damagedError, type EncodedMatrix, slicesByName } from './decoded.js';
import { PACKED_NAMES, PackedMatrix, PackedValues, requirePacked } from './packed-matrix.js';
import type { FolderScheme } from './scheme.js';

/** Layers with values, and matrices to decode. */
export interface ReadPacked extends ReadQuantized {
  readonly matrices: readonly EncodedMatrix[];
}

/**
 * Replaces each linear layer that `files` have packed by a QuantizedLinear with its values. A later
 * load reads the bias. Returns other packed matrices to decode. Throws DS_CHECKPOINT for a layer
 * that the model lacks, and for tensors of other sizes.
 */
export async function readPacked(
  model: Module,
  files: WeightFiles,
  layout: Layout,
  scheme: FolderScheme,
): Promise<ReadPacked> {
  const ends = PACKED_NAMES[scheme.method];
  const [consumed, filled] = [new Set<string>(), new Set<string>()];
  const matrices: EncodedMatrix[] = [];
  const instead = new Map<Module, Module>();
  const layers = new Map(model.namedModules());
  const findPlain = plainFinder(model, files, layout);
  for (const name of files.tensors.keys()) {
    if (!name.endsWith(`.${ends.packed}`)) continue;
    const stored = name.slice(0, -ends.packed.length - 1);
    for (const end of [ends.packed, ends.scale, ends.zero, ends.index, ...ends.rest]) {
      consumed.add(`${stored}.${end}`);
    }
    const target = layout.nameOf(`${stored}.weight`);
    // Vision encoders, and layers that predict later tokens.
    if (target === null) continue;
    const path = target.slice(0, -'.weight'.length);
    const layer = layers.get(path);
    const isLayer = layer instanceof Linear || layer instanceof TiedHead;
    const plain = isLayer ? null : findPlain(target);
    const shape = isLayer ? leading(layer.weight.shape, 2) : plain?.shape;
    if (!shape) {
      const expected = 'a linear layer of the model, or a matrix of its experts';
      throw damagedError(files, name, expected, `${path}, which is neither`);
    }
    const matrix = new PackedMatrix(files, stored, shape, scheme);
    const bias = `${stored}.bias`;
    const hasBias = isLayer && layer instanceof Linear && layer.bias !== null;
    if (!hasBias && (await hasZeroBias(files, bias, shape[0]))) consumed.add(bias);
    if (isLayer) {
      const quantized = createLayer(matrix, layer);
      instead.set(layer, quantized);
      for (const [name, parameter] of quantized.namedParameters()) {
        if (parameter !== quantized.bias) filled.add(`${path}.${name}`);
      }
      continue;
    }
    for (const part of plain?.parts ?? []) matrices.push(encoded(name, matrix, part));
  }
  replaceModules(model, instead);
  return { consumed, filled, matrices };
}

/** Rows of a packed matrix that are a parameter of the model, or a slice of one. */
interface PlainRows {
  readonly target: string;
  readonly first: number;
  readonly count: number;
}

/** A packed matrix that no linear layer has. */
interface PlainMatrix {
  readonly shape: readonly [rows: number, columns: number];
  readonly parts: readonly PlainRows[];
}

/** A matrix with the gate of an expert above its up projection, and both under their own names. */
const JOINED = /\.gate_up_proj\.weight$/;
const PARTS = ['.gate_proj.weight', '.up_proj.weight'];

/** Returns a function that finds a parameter, or the slices of one, by the name of a matrix. */
function plainFinder(
  model: Module,
  files: WeightFiles,
  layout: Layout,
): (target: string) => PlainMatrix | null {
  const parameters = new Map(model.namedParameters());
  const slices = slicesByName(layout, parameters);
  const shapeOf = (target: string): readonly number[] | undefined =>
    slices.get(target)?.slice.shape ?? parameters.get(target)?.region.whole;
  return (target) => {
    const whole = shapeOf(target);
    const targets =
      whole || !JOINED.test(target) ? [target] : PARTS.map((end) => target.replace(JOINED, end));
    const shapes = targets.map(shapeOf);
    if (shapes.some((shape) => shape?.length !== 2)) {
      if (!whole) return null;
      throw damagedError(files, target, 'a matrix', describe({ shape: whole, dtype: 'f32' }));
    }
    const [count, columns] = leading(required(shapes[0]), 2);
    const parts = targets.map((target, i) => ({ target, first: i * count, count }));
    return { shape: [count * parts.length, columns], parts };
  };
}

const encoded = (name: string, matrix: PackedMatrix, rows: PlainRows): EncodedMatrix => ({
  name,
  target: rows.target,
  size: [rows.count, matrix.shape[1]],
  consumed: [],
  values: (open, dtype) => new PackedValues(open, matrix, rows, dtype),
});

function createLayer(matrix: PackedMatrix, layer: Linear | TiedHead): QuantizedLinear {
  return noGrad(() =>
    scope(() => {
      const { packed, scale, zero, order } = matrix.read();
      const { bits, groupSize } = matrix.scheme;
      const quantized = new QuantizedLinear(
        {
          bits,
          groupSize,
          shape: matrix.shape,
          hasGelu: layer instanceof LinearGelu,
          scaleDType: scale.dtype,
          hasZeros: zero !== null,
          isReordered: order !== null,
        },
        layer instanceof Linear ? layer.bias : null,
      );
      fillParameter(quantized.weight_packed, packed);
      fillParameter(quantized.weight_scale, scale);
      if (zero) fillParameter(required(quantized.weight_zero_point), zero);
      if (order) fillParameter(required(quantized.weight_order), order);
      return quantized;
    }),
  );
}

/**
 * Returns whether the files have `name` for a layer without a bias: old versions of AutoGPTQ wrote
 * zeros. Throws DS_CHECKPOINT for other values.
 */
async function hasZeroBias(files: WeightFiles, name: string, outputs: number): Promise<boolean> {
  if (!files.tensors.has(name)) return false;
  requirePacked(files, name, [outputs], null);
  const values = await files.read(name);
  const isZero = values.toArray().every((value) => value === 0);
  values.release();
  if (isZero) return true;
  const expected = 'zeros, because the layer of the model has no bias';
  throw damagedError(files, name, expected, 'other values');
}

/** Sets the parameter to a copy of `values`, which a scope frees. */
function fillParameter(parameter: Parameter, values: Tensor): void {
  const copy = held(() => values.clone());
  parameter.place(copy);
  copy.release();
}

// Matrices that files have in an encoding, and that become plain values when a model reads them.

import {
  converted,
  type FileSlice,
  fileSlicesOf,
  type WeightFiles,
} from '../../checkpoint/index.js';
import { DsError } from '../../errors.js';
import type { Module } from '../../nn/module.js';
import type { Parameter } from '../../nn/parameter.js';
import type { StoredValues } from '../../nn/stored-values.js';
import { type Box, boxesOf, wholeBox } from '../../runtime/box.js';
import type { DType } from '../../runtime/dtype.js';
import * as kernels from '../../runtime/kernels.generated.js';
import { leading, required } from '../../runtime/required.js';
import { held, noGrad, scope, Tensor } from '../../tensor/index.js';
import type { Layout } from '../load-weights.js';
import { type OpenWeights, SlicedWeights } from '../stored-weights.js';

/** Ends of names of scales of activations and caches, and of bitsandbytes' layouts. */
export const BESIDE = [
  ...['input_scale', 'output_scale', 'input_global_scale'],
  ...['weight_format', 'k_scale', 'v_scale'],
];

/** A matrix in another encoding. */
export interface EncodedMatrix {
  /** Its name in the files, for errors. */
  readonly name: string;
  /** The name of its weight, as Layout.nameOf() returns it. */
  readonly target: string;
  readonly size: readonly [rows: number, columns: number];
  /** Names in the files that no parameter has. */
  readonly consumed: readonly string[];
  readonly values: (open: OpenWeights, dtype: DType) => StoredValues;
}

/**
 * Returns a layout that decodes `matrices` for the parameters of `model`. Throws DS_CHECKPOINT for
 * matrices of other sizes.
 */
export function wrapDecodedLayout(
  model: Module,
  files: WeightFiles,
  layout: Layout,
  { matrices, dtype }: { matrices: readonly EncodedMatrix[]; dtype: DType },
): Layout {
  const parameters = new Map(model.namedParameters());
  const ofSlices = slicesByName(layout, parameters);
  const consumed = new Set<string>();
  const decoded = new Map<string, (open: OpenWeights) => StoredValues>();
  const sliceMatrices = new Map<string, EncodedMatrix>();
  for (const matrix of matrices) {
    const { name, target, size } = matrix;
    const slice = ofSlices.get(target)?.slice;
    const wholeDims = (slice?.shape ?? parameters.get(target)?.region.whole)?.join();
    if (wholeDims !== size.join()) {
      const expected = `a layer's matrix${wholeDims === undefined ? '' : ` [${wholeDims}]`}`;
      throw damagedError(files, name, expected, `codes of [${size.join(', ')}]`);
    }
    for (const text of matrix.consumed) consumed.add(text);
    if (slice) sliceMatrices.set(target, matrix);
    else decoded.set(target, (open) => matrix.values(open, dtype));
  }
  const all = new Set([...ofSlices.values()].map(({ sliced }) => sliced));
  for (const { parameter, slices, shape } of all) {
    const encoded = slices.map((slice) => sliceMatrices.get(slice.name));
    if (encoded.every((item) => item === undefined)) continue;
    const plain = slices.find((_, i) => encoded[i] === undefined);
    if (plain) {
      const expected = 'codes, as in the other parts of this tensor';
      throw damagedError(files, plain.name, expected, 'other values');
    }
    const valuesOf = (open: OpenWeights) => (name: string) =>
      required(sliceMatrices.get(name)).values(open, dtype);
    decoded.set(parameter, (open) => new SlicedWeights(open, shape, slices, dtype, valuesOf(open)));
  }
  const nameOf = (name: string): string | null => (consumed.has(name) ? null : layout.nameOf(name));
  return { ...layout, nameOf, decoded };
}

/** A parameter that files store in slices, for example the matrices of experts. */
export interface SlicedParameter {
  readonly parameter: string;
  readonly shape: readonly number[];
  readonly slices: readonly FileSlice[];
}

/** Returns the slices of all parameters by their names in the files. */
export function slicesByName(
  { slices: patterns = {} }: Layout,
  parameters: ReadonlyMap<string, Parameter>,
): Map<string, { sliced: SlicedParameter; slice: FileSlice }> {
  const slices = new Map<string, { sliced: SlicedParameter; slice: FileSlice }>();
  for (const [parameter, names] of Object.entries(patterns)) {
    const shape = parameters.get(parameter)?.region.whole;
    if (!shape) continue;
    const sliced = { parameter, shape, slices: fileSlicesOf(names, shape) };
    for (const slice of sliced.slices) slices.set(slice.name, { sliced, slice });
  }
  return slices;
}

/** What a decoded matrix is. */
interface DecodedSource {
  readonly name: string;
  readonly size: readonly [rows: number, columns: number];
  readonly dtype: DType;
  /** Description for other ranks. */
  readonly encoding: string;
}

/** Values of a matrix [rows, columns], which decode() computes in f32. */
export abstract class DecodedMatrix implements StoredValues {
  readonly origin: string;
  readonly dtype: DType;

  constructor(
    protected readonly open: OpenWeights,
    private readonly source: DecodedSource,
  ) {
    const { files } = open.retain();
    this.dtype = source.dtype;
    this.origin = `${source.name} of ${files.bytes} bytes of weights, ${source.encoding}`;
  }

  read(out: Tensor, from: number, box: Box = wholeBox(this.source.size)): void {
    let at = out.offset;
    for (const part of boxesOf({ box, from, numel: out.numel })) {
      const values = this.decode(leading(part.offset, 2), leading(part.shape, 2));
      writeDecoded(this.source.name, values, out.alias([values.length], undefined, at));
      at += values.length;
    }
  }

  done(): void {
    this.open.release();
  }

  /** Returns the values of a part of the matrix. Throws DS_IO, DS_CHECKPOINT. */
  protected abstract decode(
    first: readonly [row: number, column: number],
    size: readonly [rows: number, columns: number],
  ): Float32Array;
}

/**
 * Converts `values` of the matrix `name` to the dtype of `target` [values.length], writes them
 * there and disposes `target`.
 */
export function writeDecoded(name: string, values: Float32Array, target: Tensor): void {
  noGrad(() =>
    scope(() => {
      writeValues(
        name,
        held(() => Tensor.from(values, { shape: [values.length] })),
        target,
      );
    }),
  );
}

/** Like writeDecoded() for a contiguous tensor, which it releases. */
export function writeValues(name: string, values: Tensor, target: Tensor): void {
  const conversion = { dtype: target.dtype, transposed: false };
  const result = held(() => converted(name, values, conversion));
  const flat = result.alias([result.numel]);
  kernels.copy({ in: flat.to(target.device), out: target });
  flat.dispose();
  result.release();
  target.dispose();
}

/** Returns the error for a tensor of the files. */
export function damagedError(
  files: WeightFiles,
  name: string,
  expected: string,
  got: string,
): DsError {
  return new DsError({ code: 'DS_CHECKPOINT', op: `${files.path}: ${name}`, expected, got });
}

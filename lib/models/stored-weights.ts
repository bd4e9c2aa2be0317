// Reads weights from their files when they are needed, range by range, in any dtype.

import { converted, type FileSlice, type WeightFiles } from '../checkpoint/index.js';
import type { StoredValues } from '../nn/stored-values.js';
import {
  type Box,
  type BoxRange,
  boxesOf,
  intersectBoxes,
  partsOf,
  positionIn,
  runShape,
  wholeBox,
} from '../runtime/box.js';
import { cpu } from '../runtime/device.js';
import { type DType, dtypeSize, isFloating } from '../runtime/dtype.js';
import * as kernels from '../runtime/kernels.generated.js';
import { required } from '../runtime/required.js';
import { numel } from '../runtime/view.js';
import { held, noGrad, scope, Tensor } from '../tensor/index.js';

/** Host buffer for transfers. */
const CHUNK_BYTES = 16 * 2 ** 20;

/** Files that close after the last use of their tensors. */
export class OpenWeights {
  private users = 0;
  private staging = new Uint8Array(0);

  constructor(readonly files: WeightFiles) {}

  /** Returns a host buffer of `bytes` bytes, which the next call reuses. */
  stage(bytes: number): Uint8Array {
    if (this.staging.length < bytes) this.staging = new Uint8Array(bytes);
    return this.staging.subarray(0, bytes);
  }

  /** Counts a tensor that still needs the files. */
  retain(): this {
    this.users++;
    return this;
  }

  /** Releases a tensor; closes the files after the last one. */
  release(): void {
    if (--this.users > 0) return;
    this.files.close().catch(() => {}); // The files were only read, so no data is lost.
  }
}

/** Location of a tensor in a file, and its conversion. */
interface StoredWeight {
  /** Name of the tensor in the files. */
  name: string;
  /** The dtype of the parameter. */
  dtype: DType;
  /** Whether the parameter is the transpose of the stored matrix. */
  transposed: boolean;
}

/** A tensor of open files. */
export class StoredWeights implements StoredValues {
  readonly dtype: DType;
  readonly origin: string;
  private readonly files: WeightFiles;
  private readonly saved: { readonly dtype: DType; readonly shape: readonly number[] };

  constructor(
    private readonly open: OpenWeights,
    private readonly weight: StoredWeight,
  ) {
    const { files } = open.retain();
    this.files = files;
    this.saved = files.tensors.get(weight.name) as typeof this.saved;
    this.dtype = weight.dtype;
    this.origin = `${weight.name} of ${files.bytes} bytes of weights, ${this.saved.dtype}`;
  }

  read(out: Tensor, from: number, box?: Box): void {
    const { transposed } = this.weight;
    const { shape } = this.saved;
    const part = box ?? wholeBox(transposed ? [...shape].reverse() : shape);
    noGrad(() =>
      scope(() => {
        if (transposed) this.readTransposed(out, from, part);
        else this.readRange(out, { box: part, from, numel: out.numel });
      }),
    );
  }

  done(): void {
    this.open.release();
  }

  /** Reads elements of a box of the stored tensor, in chunks. */
  private readRange(out: Tensor, { box, from }: BoxRange): void {
    const { dtype } = this.saved;
    const size = dtypeSize(dtype);
    const step = CHUNK_BYTES / size;
    for (let at = 0; at < out.numel; at += step) {
      const count = Math.min(step, out.numel - at);
      const part = this.open.stage(count * size);
      this.readBytes({ box, from: from + at, numel: count }, part);
      const target = out.alias([count], undefined, out.offset + at);
      if (dtype === out.dtype) {
        out.buffer.write(target.offset * size, part);
        continue;
      }
      const read = held(() => Tensor.empty([count], dtype, conversionDevice(out)));
      read.buffer.write(0, part);
      const values = held(() => this.convertTensor(read, out.dtype, false));
      kernels.copy({ in: values.to(out.device), out: target });
      values.release();
    }
  }

  /** Reads the bytes of a range, which are contiguous or row by row. */
  private readBytes(range: BoxRange, into: Uint8Array): void {
    const { dtype, shape } = this.saved;
    const size = dtypeSize(dtype);
    const wholeTensor = wholeBox(shape);
    let done = 0;
    for (const part of boxesOf(range)) {
      const run = runShape(part, [wholeTensor]);
      for (const slice of partsOf(part, run)) {
        const bytes = numel(slice.shape) * size;
        const from = positionIn(wholeTensor, slice.offset) * size;
        this.files.readNow(this.weight.name, from, into.subarray(done, done + bytes));
        done += bytes;
      }
    }
  }

  /** A transposed read needs the whole box for any part of it. */
  private readTransposed(out: Tensor, from: number, outBox: Box): void {
    const { dtype } = this.saved;
    const box = {
      offset: [...outBox.offset].reverse(),
      shape: [...outBox.shape].reverse(),
    };
    const wholeValues = held(() => Tensor.empty(box.shape, dtype, cpu()));
    const flat = wholeValues.alias([wholeValues.numel]);
    this.readRange(flat, { box, from: 0, numel: wholeValues.numel });
    const values = held(() => this.convertTensor(wholeValues, out.dtype, true));
    const part = values.alias([out.numel], undefined, values.offset + from);
    kernels.copy({ in: part.to(out.device), out: out.alias([out.numel]) });
    values.release();
  }

  private convertTensor(values: Tensor, dtype: DType, transposed: boolean): Tensor {
    return converted(this.weight.name, values, { dtype, transposed });
  }
}

/** A slice in the files. */
interface SlicePart {
  /** Position of the part in the whole tensor. */
  readonly box: Box;
  /** Whether it is one matrix of a tensor [n, r, c]. */
  readonly isMatrix: boolean;
  readonly values: StoredValues;
}

/** A tensor that open files store in slices, each a matrix of [n, k r, c]. */
export class SlicedWeights implements StoredValues {
  readonly origin: string;
  private readonly parts: readonly SlicePart[];

  /** `valuesOf` returns the values of a slice. Default: the plain tensor of its name. */
  constructor(
    open: OpenWeights,
    private readonly shape: readonly number[],
    slices: readonly FileSlice[],
    readonly dtype: DType,
    valuesOf = (name: string): StoredValues =>
      new StoredWeights(open, { name, dtype, transposed: false }),
  ) {
    this.parts = slices.map(({ name, box, shape }) => {
      const isMatrix = shape.length < box.shape.length;
      return { box: isMatrix ? box : wholeBox(shape), isMatrix, values: valuesOf(name) };
    });
    const [first] = this.parts;
    this.origin = `${slices.length} slices from ${first?.values.origin}`;
  }

  read(out: Tensor, from: number, box: Box = wholeBox(this.shape)): void {
    let at = 0;
    for (const wanted of boxesOf({ box, from, numel: out.numel })) {
      for (const part of this.parts) {
        const common = intersectBoxes(wanted, part.box);
        if (common) readInto({ out, at, wanted }, common, part);
      }
      at += numel(wanted.shape);
    }
  }

  done(): void {
    for (const { values } of this.parts) values.done();
  }
}

/**
 * Reads `common` of a slice. Its elements are contiguous in `wanted`, which begins at element `at`
 * of `out`.
 */
function readInto(
  { out, at, wanted }: { out: Tensor; at: number; wanted: Box },
  common: Box,
  { box, isMatrix, values }: SlicePart,
): void {
  const [offset, shape] = [common.offset, common.shape].map((item) =>
    isMatrix ? item.slice(1) : item,
  );
  const start = isMatrix ? box.offset.slice(1) : box.offset;
  const inSlice = (offset as number[]).map((n, d) => n - required(start[d]));
  const count = numel(common.shape);
  const part = out.alias([count], undefined, out.offset + at + positionIn(wanted, common.offset));
  values.read(part, 0, { offset: inSlice, shape: shape as number[] });
  part.dispose();
}

/** Rounding to f16 is checked on the host; other conversions run on the target device. */
const conversionDevice = ({ dtype, device }: Tensor) => (dtype === 'f16' ? cpu() : device);

/**
 * The dtype of a model's parameters: the one that all floating tensors of its files have, else the
 * one that config.json names, else f32.
 */
export function storedDType({ tensors, config }: WeightFiles): DType {
  const dtypes = new Set<DType>();
  for (const { dtype } of tensors.values()) if (isFloating(dtype)) dtypes.add(dtype);
  const [first, ...others] = dtypes;
  return first && others.length === 0 ? first : namedDType(config);
}

/** The dtype that a config.json names, else f32. */
export function namedDType(config: WeightFiles['config']): DType {
  const configured = config?.dtype ?? config?.torch_dtype;
  const dtypeName = typeof configured === 'string' ? configured.replace(/^torch\./, '') : '';
  const aliases: Record<string, DType> = { float16: 'f16', bfloat16: 'bf16' };
  return aliases[dtypeName] ?? 'f32';
}

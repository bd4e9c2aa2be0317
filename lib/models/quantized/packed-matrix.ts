// A matrix of GPTQ, AWQ or compressed-tensors folders: its tensors, their sizes, and its values.

import type { WeightFiles } from '../../checkpoint/index.js';
import type { StoredValues } from '../../nn/stored-values.js';
import { type Box, boxesOf, wholeBox } from '../../runtime/box.js';
import { cpu } from '../../runtime/device.js';
import { type DType, dtypeSize, isFloating } from '../../runtime/dtype.js';
import * as kernels from '../../runtime/kernels.generated.js';
import { leading, required } from '../../runtime/required.js';
import { describe } from '../../runtime/view.js';
import { held, noGrad, scope, Tensor } from '../../tensor/index.js';
import type { OpenWeights } from '../stored-weights.js';
import { convertCodes, convertZeros, inputOrder } from './codes.js';
import { damagedError, writeValues } from './decoded.js';
import type { FolderScheme, LayerScheme } from './scheme.js';

/** Suffixes of a matrix's names in the files. */
interface NameSuffixes {
  readonly packed: string;
  readonly scale: string;
  readonly zero: string;
  readonly index: string;
  /** Redundant entries of the files. */
  readonly rest: readonly string[];
}

const GPTQ: NameSuffixes = {
  packed: 'qweight',
  scale: 'scales',
  zero: 'qzeros',
  index: 'g_idx',
  rest: [],
};

/** The names of each method. */
export const PACKED_NAMES: Readonly<Record<FolderScheme['method'], NameSuffixes>> = {
  gptq: GPTQ,
  awq: GPTQ,
  'compressed-tensors': {
    packed: 'weight_packed',
    scale: 'weight_scale',
    zero: 'weight_zero_point',
    index: 'weight_g_idx',
    rest: ['weight_shape'],
  },
};

/** Tensors of a matrix in the layout of QuantizedLinear. */
interface PackedParts {
  readonly packed: Tensor;
  readonly scale: Tensor;
  readonly zero: Tensor | null;
  readonly order: Tensor | null;
}

/** A packed matrix [outputs, inputs] of open files. */
export class PackedMatrix {
  readonly scheme: LayerScheme;
  private readonly hasIndex: boolean;

  /**
   * `stored` is its name in the files, without a suffix. Throws DS_CHECKPOINT if its tensors have
   * other sizes or dtypes than the matrix needs.
   */
  constructor(
    readonly files: WeightFiles,
    readonly stored: string,
    readonly shape: readonly [outputs: number, inputs: number],
    private readonly folder: FolderScheme,
  ) {
    this.scheme = folder.schemeOf(stored);
    const sizes = expectedShapes(shape, this.scheme, folder.method);
    this.hasIndex = files.tensors.has(this.nameOf('index'));
    this.requireTensor('scale', sizes.scale, null);
    this.requireTensor('packed', sizes.packed, 'i32');
    if (this.scheme.hasZeros) this.requireTensor('zero', sizes.zero, 'i32');
    if (this.hasIndex) this.requireTensor('index', [shape[1]], 'i32');
  }

  /** The dtype of the scales. */
  get scaleDType(): DType {
    return required(this.files.tensors.get(this.nameOf('scale'))).dtype;
  }

  /**
   * Reads the parts as new tensors of the current scope. Throws DS_CHECKPOINT for groups of other
   * sizes, DS_IO.
   */
  read(): PackedParts {
    const { folder, shape, scheme, hasIndex } = this;
    const order =
      hasIndex && inputOrder(this.locate('index'), this.readPart('index'), scheme.groupSize);
    const zeros =
      scheme.hasZeros && convertZeros(this.readPart('zero'), folder, scheme.bits, shape[0]);
    const sizes = { shape, bits: scheme.bits, order: order || null };
    const scale = this.readPart('scale');
    const isAcross = folder.method !== 'compressed-tensors';
    return {
      packed: convertCodes(this.readPart('packed'), folder.method, sizes),
      scale: isAcross ? scale.transpose(0, 1).contiguous() : scale,
      zero: zeros ? Tensor.from(zeros.values, { shape: zeros.shape }) : null,
      order: order ? Tensor.from(order) : null,
    };
  }

  /** Returns (code - zero) * scale [outputs, inputs] f32, a tensor of the current scope. */
  decode(): Tensor {
    const { packed, scale, zero, order } = this.read();
    const { bits, groupSize } = this.scheme;
    const out = Tensor.empty(this.shape, 'f32', cpu());
    const group = groupSize ?? Math.max(1, this.shape[1]);
    kernels.dequantizeWeights({ packed, scale, zero, bits, group, out });
    return order ? out.indexSelect(1, order.argsort()) : out;
  }

  private nameOf(part: Exclude<keyof NameSuffixes, 'rest'>): string {
    return `${this.stored}.${PACKED_NAMES[this.folder.method][part]}`;
  }

  private locate(part: Exclude<keyof NameSuffixes, 'rest'>): string {
    return `${this.files.path}: ${this.nameOf(part)}`;
  }

  private readPart(part: Exclude<keyof NameSuffixes, 'rest'>): Tensor {
    const name = this.nameOf(part);
    const { shape, dtype } = required(this.files.tensors.get(name));
    const values = Tensor.empty(shape, dtype, cpu());
    const bytes = new Uint8Array(values.numel * dtypeSize(dtype));
    this.files.readNow(name, 0, bytes);
    values.buffer.write(0, bytes);
    return values;
  }

  private requireTensor(
    part: Exclude<keyof NameSuffixes, 'rest'>,
    shape: readonly number[],
    dtype: DType | null,
  ): void {
    requirePacked(this.files, this.nameOf(part), shape, dtype);
  }
}

/** Throws DS_CHECKPOINT unless `name` has this shape and dtype; null: a floating one. */
export function requirePacked(
  files: WeightFiles,
  name: string,
  shape: readonly number[],
  dtype: DType | null,
): void {
  const entry = files.tensors.get(name);
  const isSame =
    entry?.shape.join() === shape.join() &&
    (dtype === null ? isFloating(entry.dtype) && entry.dtype !== 'f64' : entry.dtype === dtype);
  if (isSame) return;
  const expected = dtype === null ? `[${shape.join(', ')}] floating` : describe({ shape, dtype });
  throw damagedError(files, name, expected, entry ? describe(entry) : 'no such tensor');
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

/** Plain values of rows of a packed matrix. A read decodes the whole matrix. */
export class PackedValues implements StoredValues {
  readonly origin: string;

  constructor(
    private readonly open: OpenWeights,
    private readonly matrix: PackedMatrix,
    private readonly rows: { readonly first: number; readonly count: number },
    readonly dtype: DType,
  ) {
    const { files } = open.retain();
    const { bits } = matrix.scheme;
    this.origin = `${matrix.stored} from row ${rows.first} of ${files.bytes} bytes of weights, ${bits}-bit codes`;
  }

  read(out: Tensor, from: number, given?: Box): void {
    const { matrix, rows } = this;
    const box = given ?? wholeBox([rows.count, matrix.shape[1]]);
    noGrad(() =>
      scope(() => {
        const decoded = matrix.decode();
        let at = out.offset;
        for (const part of boxesOf({ box, from, numel: out.numel })) {
          const [row, column] = leading(part.offset, 2);
          const [height, width] = leading(part.shape, 2);
          const values = held(() =>
            decoded
              .narrow(0, rows.first + row, height)
              .narrow(1, column, width)
              .clone(),
          );
          const count = values.numel;
          writeValues(matrix.stored, values, out.alias([count], undefined, at));
          at += count;
        }
      }),
    );
  }

  done(): void {
    this.open.release();
  }
}

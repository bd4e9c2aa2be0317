// Reads matrices of 2 to 8 bits with a scale for each group of inputs as plain values: MLX, and FP4
// of compressed-tensors and ModelOpt. Sources: MLX's quantize(); OCP Microscaling Formats (MX) 1.0;
// compressed-tensors' and ModelOpt's folders.

import type { WeightFiles } from '../../checkpoint/index.js';
import { E4M3 } from '../../nn/fp8-linear.js';
import { cpu } from '../../runtime/device.js';
import { type DType, dtypeSize, isFloating } from '../../runtime/dtype.js';
import { leading, required } from '../../runtime/required.js';
import { describe } from '../../runtime/view.js';
import { noGrad, scope, Tensor } from '../../tensor/index.js';
import type { Layout } from '../load-weights.js';
import type { ModelConfig } from '../model-config.js';
import type { OpenWeights } from '../stored-weights.js';
import { BESIDE, DecodedMatrix, damagedError, type EncodedMatrix } from './decoded.js';

/** Values of the codes of four-bit floats; bit 3 is the sign. */
const E2M1 = Float32Array.of(0, 0.5, 1, 1.5, 2, 3, 4, 6, -0, -0.5, -1, -1.5, -2, -3, -4, -6);
/** Powers of two by their bytes; 255 is NaN. */
const E8M0 = Float32Array.from({ length: 256 }, (_, code) =>
  code === 255 ? Number.NaN : 2 ** (code - 127),
);

/** How codes and scales become values. */
interface CodeFormat {
  readonly bits: number;
  /** Adjacent inputs with one scale. */
  readonly groupSize: number;
  /** Values of the codes; null: the codes. */
  readonly table: Float32Array | null;
  /** Values of one-byte scales; null: the scales are floats. */
  readonly scaleTable: Float32Array | null;
}

const FORMATS = {
  mxfp4: { bits: 4, groupSize: 32, table: E2M1, scaleTable: E8M0 },
  nvfp4: { bits: 4, groupSize: 16, table: E2M1, scaleTable: E4M3 },
  mxfp8: { bits: 8, groupSize: 32, table: E4M3, scaleTable: E8M0 },
} as const satisfies Record<string, CodeFormat>;

/** A matrix of codes, or the matrix of one expert. */
interface GroupCodes extends CodeFormat {
  /** Name of the codes in the files: [rows, bytes], or one such matrix for each expert. */
  readonly codes: string;
  readonly scales: string;
  /** Name of the numbers to add to the values of a group; null: none. */
  readonly offsets: string | null;
  readonly size: readonly [rows: number, columns: number];
  /** Row of the files with the first row of this matrix. */
  readonly firstRow: number;
  /** Changes a scale, for example by the scale of the whole matrix. */
  readonly scaleOf: (scale: number) => number;
}

/** A scale without a change. */
const asStored = (scale: number): number => scale;

/** Values of a matrix with group codes: scale times value, plus offset, rounded once to f32. */
class GroupCodeValues extends DecodedMatrix {
  constructor(
    open: OpenWeights,
    private readonly coded: GroupCodes,
    dtype: DType,
  ) {
    const { codes, firstRow, size, bits } = coded;
    const name = firstRow === 0 ? codes : `${codes} from row ${firstRow}`;
    super(open, { name, size, dtype, encoding: `${bits}-bit codes` });
  }

  protected override decode(
    [firstRow, firstColumn]: readonly [number, number],
    [rows, columns]: readonly [number, number],
  ): Float32Array {
    const { codes, size, bits, groupSize, table, scales, offsets, scaleTable } = this.coded;
    const width = (size[1] * bits) / 8;
    const groups = size[1] / groupSize;
    const row = this.coded.firstRow + firstRow;
    const bytes = new Uint8Array(rows * width);
    this.open.files.readNow(codes, row * width, bytes);
    const range = { from: row * groups, count: rows * groups };
    const steps = readNumbers(this.open.files, scales, range, scaleTable);
    const shifts = offsets === null ? null : readNumbers(this.open.files, offsets, range, null);
    const mask = 2 ** bits - 1;
    const values = new Float32Array(rows * columns);
    for (let i = 0; i < rows; ++i) {
      for (let j = 0; j < columns; ++j) {
        const bit = (firstColumn + j) * bits;
        const at = i * width + (bit >> 3);
        const two = (bytes[at] as number) | ((bytes[at + 1] as number) << 8);
        const code = (two >> (bit & 7)) & mask;
        const group = i * groups + Math.floor((firstColumn + j) / groupSize);
        const step = this.coded.scaleOf(steps[group] as number);
        const value = step * (table === null ? code : (table[code] as number));
        values[i * columns + j] = shifts === null ? value : value + (shifts[group] as number);
      }
    }
    return values;
  }
}

/** Reads numbers of a tensor as f32. Throws DS_CHECKPOINT if one is not finite. */
function readNumbers(
  files: WeightFiles,
  name: string,
  { from, count }: { from: number; count: number },
  table: Float32Array | null,
): Float32Array {
  const { dtype } = required(files.tensors.get(name));
  const bytes = new Uint8Array(count * dtypeSize(dtype));
  files.readNow(name, from * dtypeSize(dtype), bytes);
  const numbers = table
    ? Float32Array.from(bytes, (code) => table[code] as number)
    : noGrad(() =>
        scope(() => {
          const read = Tensor.empty([count], dtype, cpu());
          read.buffer.write(0, bytes);
          return Float32Array.from(read.to('f32').toArray());
        }),
      );
  const wrong = numbers.findIndex((number) => !Number.isFinite(number));
  if (wrong < 0) return numbers;
  throw damagedError(files, name, 'finite numbers', `${numbers[wrong]} at ${from + wrong}`);
}

/** Throws DS_CHECKPOINT unless `name` is a tensor of this shape, of floats or of bytes. */
function requireNumbers(
  files: WeightFiles,
  name: string,
  shape: readonly number[],
  isBytes: boolean,
): void {
  const entry = files.tensors.get(name);
  const fits = entry && (isBytes ? entry.dtype === 'u8' : isFloating(entry.dtype));
  if (fits && entry.shape.join() === shape.join()) return;
  const expected = `${isBytes ? 'bytes' : 'floats'} [${shape.join(', ')}]`;
  throw damagedError(files, name, expected, entry ? describe(entry) : 'no such tensor');
}

/** Returns the format of compressed-tensors and ModelOpt folders; null for others. */
function fp4FormatOf(config: ModelConfig): 'nvfp4' | 'mxfp4' | null {
  if (config.get('quant_method') === 'modelopt') return 'nvfp4';
  if (config.get('quant_method') !== 'compressed-tensors') return null;
  const format = config.get('format');
  if (format === 'nvfp4-pack-quantized') return 'nvfp4';
  return format === 'mxfp4-pack-quantized' ? 'mxfp4' : null;
}

/** Returns whether the weights of a quantization_config are four-bit floats in groups. */
export const isFp4 = (config: ModelConfig): boolean => fp4FormatOf(config) !== null;

/** Returns the matrices of four-bit floats. Rejects with DS_CHECKPOINT. */
export async function findFp4(
  files: WeightFiles,
  layout: Layout,
  config: ModelConfig,
): Promise<EncodedMatrix[]> {
  const format = FORMATS[fp4FormatOf(config) ?? 'nvfp4'];
  const isModelOpt = config.get('quant_method') === 'modelopt';
  const end = isModelOpt ? 'weight' : 'weight_packed';
  const globalEnd = isModelOpt ? 'weight_scale_2' : 'weight_global_scale';
  const matrices: EncodedMatrix[] = [];
  for (const [codes, { dtype, shape, code }] of files.tensors) {
    if (!codes.endsWith(`.${end}`) || dtype !== 'u8' || code) continue;
    const base = codes.slice(0, -end.length);
    const target = layout.nameOf(`${base}weight`);
    if (target === null) continue;
    if (shape.length !== 2)
      throw damagedError(files, codes, 'a matrix of codes', describe({ dtype, shape }));
    const size = [required(shape[0]), 2 * required(shape[1])] as const;
    const scales = `${base}weight_scale`;
    requireNumbers(files, scales, [size[0], size[1] / format.groupSize], true);
    const hasGlobal = format === FORMATS.nvfp4;
    const whole = hasGlobal ? await readOne(files, base + globalEnd) : 1;
    const divides = hasGlobal && !isModelOpt;
    const scaleOf = (scale: number): number => Math.fround(divides ? scale / whole : scale * whole);
    const values = { ...format, codes, scales, offsets: null, size, firstRow: 0, scaleOf };
    const rest = [scales, base + globalEnd, ...BESIDE.map((text) => base + text)];
    matrices.push(encoded(values, target, [codes, ...rest]));
  }
  return matrices;
}

const encoded = (
  coded: GroupCodes,
  target: string,
  consumed: readonly string[],
): EncodedMatrix => ({
  name: coded.codes,
  target,
  size: coded.size,
  consumed,
  values: (open, dtype) => new GroupCodeValues(open, coded, dtype),
});

/** Reads the scale of a whole matrix. Rejects with DS_CHECKPOINT unless it is positive. */
async function readOne(files: WeightFiles, name: string): Promise<number> {
  const entry = files.tensors.get(name);
  if (entry?.dtype === 'f32' && entry.shape.every((size) => size === 1)) {
    const read = await files.read(name);
    const [value = 0] = scope(() => read.toArray());
    read.release();
    if (value > 0 && Number.isFinite(value)) return value;
    throw damagedError(files, name, 'a positive number', String(value));
  }
  throw damagedError(files, name, 'one f32 number', entry ? describe(entry) : 'no such tensor');
}

/** Returns whether a quantization_config is one of MLX, which names no method. */
export function isMlx(config: ModelConfig): boolean {
  return config.get('quant_method') === null && config.has('bits') && config.has('group_size');
}

/** Maps the last part of an expert's name in other folders to that in MLX folders. */
const EXPERT_ENDS: Readonly<Record<string, string>> = {
  w1: 'gate_proj',
  w2: 'down_proj',
  w3: 'up_proj',
};

/** Returns the name of all experts' matrices in MLX's folders; null for another pattern. */
function stackName(pattern: string): string | null {
  const [, before, end] = /^(.*)\.experts\.\*\.(\w+)\.weight$/.exec(pattern) ?? [];
  return end === undefined ? null : `${before}.switch_mlp.${EXPERT_ENDS[end] ?? end}.weight`;
}

/**
 * Returns the matrices of an MLX folder with codes. Throws DS_CHECKPOINT for codes without scales,
 * or of other sizes.
 */
export function findMlx(files: WeightFiles, layout: Layout, config: ModelConfig): EncodedMatrix[] {
  const stacks = new Map<string, string>();
  for (const pattern of Object.values(layout.slices ?? {}).flat()) {
    const name = stackName(pattern);
    if (name !== null) stacks.set(name, pattern);
  }
  const matrices: EncodedMatrix[] = [];
  for (const [codes, { code, shape }] of files.tensors) {
    const target = code === 'U32' ? layout.nameOf(codes) : null;
    if (target === null) continue;
    const base = codes.slice(0, -'.weight'.length);
    const format = mlxFormatOf(config, base);
    const pattern = stacks.get(target);
    const isStack = pattern !== undefined && shape.length === 3;
    if (!codes.endsWith('.weight') || (shape.length !== 2 && !isStack)) {
      throw damagedError(files, codes, "a layer's matrix", describe({ dtype: 'i32', shape }));
    }
    const [rows, words] = leading(shape.slice(-2), 2);
    if (rows * words === 0) throw damagedError(files, codes, 'codes', 'an empty tensor');
    const size = [rows, (words * 32) / format.bits] as const;
    const groups = [...shape.slice(0, -1), size[1] / format.groupSize];
    const scales = `${base}.scales`;
    const offsets = format.scaleTable ? null : `${base}.biases`;
    requireNumbers(files, scales, groups, format.scaleTable !== null);
    if (offsets) requireNumbers(files, offsets, groups, false);
    const common = { ...format, codes, scales, offsets, size, scaleOf: asStored };
    const consumed = [codes, scales, `${base}.biases`];
    if (!isStack) {
      matrices.push(encoded({ ...common, firstRow: 0 }, target, consumed));
      continue;
    }
    for (let expert = 0; expert < required(shape[0]); ++expert) {
      const name = pattern.replace('*', String(expert));
      matrices.push(encoded({ ...common, firstRow: expert * rows }, name, consumed));
    }
  }
  return matrices;
}

/**
 * Returns the format of a layer: that of the file, or its own. Throws DS_CHECKPOINT for an unknown
 * mode or unsupported bits.
 */
function mlxFormatOf(config: ModelConfig, layer: string): CodeFormat {
  const own = config.get(layer);
  const section = typeof own === 'object' && own !== null ? config.section(layer) : config;
  const mode = section.get('mode', 'affine');
  section.requireOneOf('mode', ['affine', 'mxfp4', 'nvfp4', 'mxfp8']);
  if (mode !== 'affine') return FORMATS[mode as keyof typeof FORMATS];
  const bits = section.size('bits', null, 8);
  if (bits === 1 || bits === 7) throw section.refusalError('bits', '2 to 6, or 8', bits);
  return { bits, groupSize: section.size('group_size'), table: null, scaleTable: null };
}

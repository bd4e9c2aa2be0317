// Reads weights of one-byte codes and f32 scales as plain values: FP8 of DeepSeek,
// compressed-tensors and ModelOpt, and 8 bits of bitsandbytes.
import {
  converted,
  type FileSlice,
  fileSlicesOf,
  unreadDType,
  type WeightFiles,
} from '../../checkpoint/index.js';
import { DsError } from '../../errors.js';
import { E4M3 } from '../../nn/fp8-linear.js';
import type { Module } from '../../nn/module.js';
import type { Parameter } from '../../nn/parameter.js';
import type { StoredValues } from '../../nn/stored-values.js';
import { type Box, boxesOf, wholeBox } from '../../runtime/box.js';
import type { DType } from '../../runtime/dtype.js';
import * as kernels from '../../runtime/kernels.generated.js';
import { leading, required } from '../../runtime/required.js';
import { describe } from '../../runtime/view.js';
import { held, noGrad, scope, Tensor } from '../../tensor/index.js';
import type { Layout } from '../load-weights.js';
import type { ModelConfig } from '../model-config.js';
import { type OpenWeights, SlicedWeights } from '../stored-weights.js';

/** Rows and columns that share a scale. */
type ScaleBlock = readonly [rows: number, columns: number];

const I8 = Float32Array.from({ length: 256 }, (_, code) => (code < 128 ? code : code - 256));

/** Names of scales behind the name of a layer, and the factor of all its codes. */
const SCALES = {
  F8_E4M3: { names: ['weight_scale_inv', 'weight_scale'], factor: 1 },
  I8: { names: ['SCB'], factor: 1 / 127 },
} as const;
/** Of activations, which stay in the dtype of the model, and of bitsandbytes' layouts. */
const BESIDE = ['input_scale', 'output_scale', 'weight_format', 'k_scale', 'v_scale'];

/** Returns whether the weights of a quantization_config are one-byte codes. */
export function isCoded(config: ModelConfig): boolean {
  switch (config.get('quant_method')) {
    case 'fp8':
      return true;
    case 'modelopt':
      config.requireOneOf('quant_algo', ['FP8']);
      return true;
    case 'compressed-tensors':
      return config.get('format') === 'float-quantized';
    case 'bitsandbytes':
      return config.get('load_in_8bit') === true;
    default:
      return false;
  }
}

/** The block of "fp8" files; others have a scale for each output or for all. */
function readBlock(config: ModelConfig): ScaleBlock {
  const blockSize = config.get('weight_block_size') ?? [128, 128];
  const isSize = (value: unknown): boolean => Number.isSafeInteger(value) && Number(value) > 0;
  if (Array.isArray(blockSize) && blockSize.length === 2 && blockSize.every(isSize)) {
    return blockSize as unknown as ScaleBlock;
  }
  throw config.refusalError('weight_block_size', 'two numbers of at least 1', blockSize);
}

/**
 * Finds the matrices of `model` that `files` have as codes; returns a layout that decodes them.
 * Rejects with DS_CHECKPOINT for tensors of other sizes.
 */
export async function wrapCodedLayout(
  model: Module,
  files: WeightFiles,
  layout: Layout,
  { config, dtype }: { config: ModelConfig; dtype: DType },
): Promise<Layout> {
  const parameters = new Map(model.namedParameters());
  const ofSlices = slicesByName(layout, parameters);
  const consumed = new Set<string>();
  const decoded = new Map<string, (open: OpenWeights) => StoredValues>();
  const codedByName = new Map<string, CodedMatrix>();
  for (const [codes, { code, shape }] of files.tensors) {
    const parameterName = code && layout.nameOf(codes);
    if (!parameterName) continue;
    const slice = ofSlices.get(parameterName)?.slice;
    const wholeDims = (slice?.shape ?? parameters.get(parameterName)?.region.whole)?.join();
    if (!codes.endsWith('.weight') || shape.length !== 2 || wholeDims !== shape.join()) {
      const expected = `a layer's matrix${wholeDims === undefined ? '' : ` [${wholeDims}]`}`;
      throw damagedError(files, codes, expected, describe({ dtype: 'u8', shape }));
    }
    const base = codes.slice(0, -'weight'.length);
    const { names, factor } = SCALES[code];
    const name = names.map((name) => base + name).find((text) => files.tensors.has(text));
    if (name === undefined)
      throw damagedError(files, base + names[0], 'a tensor with scales', 'no such tensor');
    const size = leading(shape, 2);
    const scales = await findScales(files, name, size, () => readBlock(config));
    const values = { ...scales, codes, size, factor, table: code === 'I8' ? I8 : E4M3 };
    for (const text of [codes, name, ...BESIDE.map((end) => base + end)]) consumed.add(text);
    if (slice) codedByName.set(parameterName, values);
    else decoded.set(parameterName, (open) => new CodedValues(open, values, dtype));
  }
  const all = new Set([...ofSlices.values()].map(({ sliced }) => sliced));
  for (const { parameter, slices, shape } of all) {
    const coded = slices.map((slice) => codedByName.get(slice.name));
    if (coded.every((item) => item === undefined)) continue;
    const plain = slices.find((_, i) => coded[i] === undefined);
    if (plain)
      throw damagedError(
        files,
        plain.name,
        'codes, as in the other parts of this tensor',
        'other values',
      );
    const valuesOf = (open: OpenWeights) => (name: string) =>
      new CodedValues(open, required(codedByName.get(name)), dtype);
    decoded.set(parameter, (open) => new SlicedWeights(open, shape, slices, dtype, valuesOf(open)));
  }
  if (decoded.size === 0) {
    const expected = 'a folder with matrices of one-byte codes';
    const key = config.get('quant_method') === 'compressed-tensors' ? 'format' : 'quant_method';
    throw config.refusalError(key, expected, config.get(key));
  }
  const nameOf = (name: string): string | null => (consumed.has(name) ? null : layout.nameOf(name));
  return { ...layout, nameOf, decoded };
}

/** A parameter that files store in slices, for example the matrices of experts. */
interface SlicedParameter {
  readonly parameter: string;
  readonly shape: readonly number[];
  readonly slices: readonly FileSlice[];
}

/** Returns the slices of all parameters by their names in the files. */
function slicesByName(
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

/** Throws DS_CHECKPOINT if a weight has codes that `layout` does not decode. */
export function requireNoCodes(files: WeightFiles, layout: Layout): void {
  for (const [name, { code }] of files.tensors) {
    if (code && layout.nameOf(name) !== null) throw unreadDType(`${files.path}: ${name}`, code);
  }
}

interface Scales {
  readonly scales: Float32Array;
  readonly block: ScaleBlock;
  /** Scales in a row of blocks. */
  readonly width: number;
}

/** Reads the scales of a matrix: one, one for each output, or one for each block. */
async function findScales(
  files: WeightFiles,
  name: string,
  [rows, columns]: readonly [number, number],
  block: () => ScaleBlock,
): Promise<Scales> {
  const { shape, dtype } = required(files.tensors.get(name));
  const count = shape.reduce((all, value) => all * value, 1);
  const isPlain = shape.length < 2 || shape[1] === 1;
  const scaleBlock: ScaleBlock =
    count === 1 ? [rows, columns] : isPlain && count === rows ? [1, columns] : block();
  const [high, width] = [Math.ceil(rows / scaleBlock[0]), Math.ceil(columns / scaleBlock[1])];
  if (count !== high * width || (count > rows && shape.join() !== `${high},${width}`)) {
    throw damagedError(
      files,
      name,
      `1, ${rows} or ${high} x ${width} scales`,
      describe({ dtype, shape }),
    );
  }
  const read = await files.read(name);
  const scales = scope(() => Float32Array.from(read.to('f32').toArray()));
  read.release();
  const wrong = scales.findIndex((scale) => !Number.isFinite(scale));
  if (wrong >= 0) throw damagedError(files, name, 'finite scales', `${scales[wrong]} at ${wrong}`);
  return { scales, block: scaleBlock, width };
}

interface CodedMatrix extends Scales {
  /** Name of the codes in the files. */
  readonly codes: string;
  readonly size: readonly [rows: number, columns: number];
  readonly table: Float32Array;
  readonly factor: number;
}

/** Values of a matrix [rows, columns] with codes. */
class CodedValues implements StoredValues {
  readonly origin: string;

  constructor(
    private readonly open: OpenWeights,
    private readonly coded: CodedMatrix,
    readonly dtype: DType,
  ) {
    const { files } = open.retain();
    this.origin = `${coded.codes} of ${files.bytes} bytes of weights, one-byte codes`;
  }

  read(out: Tensor, from: number, box: Box = wholeBox(this.coded.size)): void {
    let at = out.offset;
    for (const part of boxesOf({ box, from, numel: out.numel })) {
      const values = this.decode(leading(part.offset, 2), leading(part.shape, 2));
      this.write(values, out.alias([values.length], undefined, at));
      at += values.length;
    }
  }

  done(): void {
    this.open.release();
  }

  private write(values: Float32Array, target: Tensor): void {
    noGrad(() =>
      scope(() => {
        const read = held(() => Tensor.from(values, { shape: [values.length] }));
        const conversion = { dtype: target.dtype, transposed: false };
        const codes = held(() => converted(this.coded.codes, read, conversion));
        kernels.copy({ in: codes.to(target.device), out: target });
        codes.release();
      }),
    );
    target.dispose();
  }

  private decode(
    [firstRow, firstColumn]: readonly [number, number],
    [rows, columns]: readonly [number, number],
  ): Float32Array {
    const { codes, size, scales, block, width, table, factor } = this.coded;
    const bytes = new Uint8Array(rows * size[1]);
    this.open.files.readNow(codes, firstRow * size[1], bytes);
    const values = new Float32Array(rows * columns);
    for (let i = 0; i < rows; ++i) {
      const row = Math.floor((firstRow + i) / block[0]) * width;
      for (let j = 0; j < columns; ++j) {
        const column = firstColumn + j;
        const scale = scales[row + Math.floor(column / block[1])] as number;
        values[i * columns + j] =
          (table[bytes[i * size[1] + column] as number] as number) * (scale * factor);
      }
    }
    return values;
  }
}

function damagedError(files: WeightFiles, name: string, expected: string, got: string): DsError {
  return new DsError({ code: 'DS_CHECKPOINT', op: `${files.path}: ${name}`, expected, got });
}

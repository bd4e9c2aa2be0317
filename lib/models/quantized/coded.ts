// Reads weights of one-byte codes and f32 scales as plain values: FP8 of DeepSeek,
// compressed-tensors and ModelOpt, and 8 bits of bitsandbytes and compressed-tensors.
import { unreadDType, type WeightFiles } from '../../checkpoint/index.js';
import { E4M3 } from '../../nn/fp8-linear.js';
import type { DType } from '../../runtime/dtype.js';
import { leading, required } from '../../runtime/required.js';
import { describe } from '../../runtime/view.js';
import { scope } from '../../tensor/index.js';
import type { Layout } from '../load-weights.js';
import type { ModelConfig } from '../model-config.js';
import type { OpenWeights } from '../stored-weights.js';
import { BESIDE, DecodedMatrix, damagedError, type EncodedMatrix } from './decoded.js';

/** Rows and columns that share a scale. */
type ScaleBlock = readonly [rows: number, columns: number];

const I8 = Float32Array.from({ length: 256 }, (_, code) => (code < 128 ? code : code - 256));

/** Names of scales behind the name of a layer, and the factor of all its codes. */
const SCALES = {
  F8_E4M3: { weight_scale_inv: 1, weight_scale: 1 },
  I8: { SCB: 1 / 127, weight_scale: 1 },
} as const;

/** Formats of compressed-tensors with a byte for each weight. */
const BYTE_FORMATS: readonly unknown[] = ['float-quantized', 'int-quantized', 'naive-quantized'];

/** Returns whether the weights of a quantization_config are one-byte codes. */
export function isCoded(config: ModelConfig): boolean {
  switch (config.get('quant_method')) {
    case 'fp8':
      return true;
    case 'modelopt':
      config.requireOneOf('quant_algo', ['FP8', 'NVFP4']);
      return config.get('quant_algo') === 'FP8';
    case 'compressed-tensors':
      return BYTE_FORMATS.includes(config.get('format'));
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

/** Returns the matrices that `files` have as one-byte codes. Rejects with DS_CHECKPOINT. */
export async function findCoded(
  files: WeightFiles,
  layout: Layout,
  config: ModelConfig,
): Promise<EncodedMatrix[]> {
  const matrices: EncodedMatrix[] = [];
  for (const [codes, { code, shape }] of files.tensors) {
    const target = code && code !== 'U32' ? layout.nameOf(codes) : null;
    if (target === null || !code || code === 'U32') continue;
    if (!codes.endsWith('.weight') || shape.length !== 2) {
      throw damagedError(files, codes, "a layer's matrix", describe({ dtype: 'u8', shape }));
    }
    const base = codes.slice(0, -'weight'.length);
    const [first = '', ...others] = Object.keys(SCALES[code]);
    const end = [first, ...others].find((text) => files.tensors.has(base + text));
    if (end === undefined)
      throw damagedError(files, base + first, 'a tensor with scales', 'no such tensor');
    const size = leading(shape, 2);
    const scales = await findScales(files, base + end, size, () => readBlock(config));
    const factor = required((SCALES[code] as Readonly<Record<string, number>>)[end]);
    const values = { ...scales, codes, size, factor, table: code === 'I8' ? I8 : E4M3 };
    matrices.push({
      name: codes,
      target,
      size,
      consumed: [codes, base + end, ...BESIDE.map((text) => base + text)],
      values: (open, dtype) => new CodedValues(open, values, dtype),
    });
  }
  return matrices;
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
class CodedValues extends DecodedMatrix {
  constructor(
    open: OpenWeights,
    private readonly coded: CodedMatrix,
    dtype: DType,
  ) {
    super(open, { ...coded, name: coded.codes, dtype, encoding: 'one-byte codes' });
  }

  protected override decode(
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
